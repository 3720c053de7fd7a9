"""Everything about data: readers, cleaning, splits, the store, batches."""
