"""The paper as printed: its formulas, its assumptions and its numbers."""
