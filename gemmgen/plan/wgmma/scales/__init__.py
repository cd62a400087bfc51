"""Scales of blocks of A and B in Hopper kernels, whose threads multiply the sums of a block by them."""
