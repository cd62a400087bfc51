"""The matmul of a kernel and its sizes: the part of a plan that the spec alone decides."""

from __future__ import annotations

from gemmgen.problem.extents import DEFAULT_SHAPE, Ranges, Shape, shape_text
from gemmgen.problem.gradients import OPERANDS, Gradient, gradients_of
from gemmgen.problem.groups import GroupKind, Groups
from gemmgen.problem.matmul import BlockScale, Matmul, Operand
from gemmgen.problem.operations import OPERATIONS
from gemmgen.problem.request import Request

__all__ = [
    "DEFAULT_SHAPE",
    "OPERANDS",
    "OPERATIONS",
    "BlockScale",
    "Gradient",
    "GroupKind",
    "Groups",
    "Matmul",
    "Operand",
    "Ranges",
    "Request",
    "Shape",
    "gradients_of",
    "shape_text",
]
