"""Saved sums: the sums of a gate are stored beside D for a backward."""
