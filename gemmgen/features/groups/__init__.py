"""Groups of rows, groups of K, and batches."""
