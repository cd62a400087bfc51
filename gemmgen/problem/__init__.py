"""What is computed: operands, shapes, and the operations of the epilogue."""

from gemmgen.problem.definition import Shape, shape_text

__all__ = ["Shape", "shape_text"]
