"""Specs at random, at and beyond the borders of what is legal."""
