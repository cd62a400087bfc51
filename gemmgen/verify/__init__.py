"""A kernel against its reference on a GPU."""

from gemmgen.verify.run import default_shapes, verify, verify_large, verify_numbers
from gemmgen.verify.shapes import ACCEPTANCE_SHAPES
from gemmgen.verify.verification import Verification

__all__ = [
    "ACCEPTANCE_SHAPES",
    "Verification",
    "default_shapes",
    "verify",
    "verify_large",
    "verify_numbers",
]
