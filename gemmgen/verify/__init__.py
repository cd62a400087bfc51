"""A kernel against its reference: on a GPU, or in the simulator."""

from gemmgen.verify.shapes import ACCEPTANCE_SHAPES
from gemmgen.verify.verification import Verification, default_shapes, verify, verify_large, verify_numbers

__all__ = [
    "ACCEPTANCE_SHAPES",
    "Verification",
    "default_shapes",
    "verify",
    "verify_large",
    "verify_numbers",
]
