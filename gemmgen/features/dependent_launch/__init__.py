"""Dependent launch (PDL): a kernel starts before the kernel ahead of it has ended."""
