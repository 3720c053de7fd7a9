"""Words, tables, colours and charts for shell, report and study alike."""
