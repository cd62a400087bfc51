"""Scales of D that the kernel computes."""
