"""TTGIR as values: operations, blocks, types, and calls."""
