"""The paper's main table."""
