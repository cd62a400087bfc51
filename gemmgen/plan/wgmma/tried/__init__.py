"""Decisions that are tried for Hopper kernels where a spec leaves them open."""
