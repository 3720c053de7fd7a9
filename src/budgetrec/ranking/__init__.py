"""Scores, top items, ranks and metrics of ranks."""
