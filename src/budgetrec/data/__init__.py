"""Data: readers, cleaning, splits, storage and batches."""
