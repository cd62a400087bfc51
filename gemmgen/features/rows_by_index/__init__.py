"""Rows by an index: A is gathered, or D is scattered."""
