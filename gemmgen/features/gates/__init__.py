"""Gates: an element of D is computed from two sums."""
