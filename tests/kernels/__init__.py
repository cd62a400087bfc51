"""Kernels that nobody generated: written for the simulator's tests, or as the tutorials have them."""
