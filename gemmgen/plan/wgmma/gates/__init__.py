"""Kernels with several matrices side by side in C and D, as backwards of gates have them."""
