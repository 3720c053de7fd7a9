"""Run folders: the only package that knows their layout."""
