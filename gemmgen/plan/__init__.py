"""Kernels as values: their geometry, resources, rules and times; pure, in milliseconds."""

from gemmgen.plan.kernel import Kernel

__all__ = ["Kernel"]
