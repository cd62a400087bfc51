"""Composed and staggered tiles: their columns are several powers of two."""
