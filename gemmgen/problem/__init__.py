"""A problem to compute: its shape and inputs, the exact result, and how close to it is right."""

from gemmgen.problem.check import Check
from gemmgen.problem.shape import Shape, shape_text

__all__ = ["Check", "Shape", "shape_text"]
