"""A kernel against its reference on a GPU."""

from gemmgen.verify.run import default_shapes, verify, verify_large, verify_numbers
from gemmgen.verify.shapes import ACCEPTANCE_SHAPES
from gemmgen.verify.verification import Check, Shape, Verification, shape_text

__all__ = [
    "ACCEPTANCE_SHAPES",
    "Check",
    "Shape",
    "Verification",
    "default_shapes",
    "shape_text",
    "verify",
    "verify_large",
    "verify_numbers",
]
