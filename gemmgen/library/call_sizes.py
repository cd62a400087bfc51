"""The expressions with which a library reads the sizes of a problem from the tensors of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmgen.problem.groups import GroupKind


@dataclass(frozen=True)
class CallSizes:
    """The expressions of one kind of groups, as text."""

    condition: str
    """The dimensions of A and B that the next statement needs."""
    sizes: tuple[str, ...]
    """The expressions of M, the columns of B, and K, and of the number of groups if there are any."""
    dimensions: tuple[int, int]
    """The dimensions of A and B for the operator."""
    read_by_operator: str
    """The statement that reads the same, with B's columns for N, from an A and a B of these dimensions."""
    d: str
    """The extents of D before N."""
    flattens: bool = False
    """True if A may have more dimensions, which are then all of M."""
    key: tuple[str, ...] = ()
    """Further parts of the key of a choice, beside the shapes of A and B."""
    chosen_by: tuple[str, ...] = ()
    """Further arguments that a choice depends on, beside A and B."""
    expects_rows: bool = False
    """True if a caller may say how many rows a group has in the mean: it is no property of a shape."""
    m: str = "M"
    """Meaning of M in the table."""


APART: Final = CallSizes(
    "a.dim() == b.dim() == 3",
    ("a.shape[1]", "b.shape[2]", "b.shape[1]", "b.shape[0]"),
    (3, 3),
    "(groups, m, k), (_, b_rows, n) = a.shape, b.shape",
    "groups, m",
    m="the rows of each group in A",
)
"""The sizes of groups for which A has a dimension."""
CALL_SIZES: Final[dict[GroupKind | None, CallSizes]] = {
    None: CallSizes(
        "a.dim() >= b.dim() == 2",
        ("math.prod(a.shape[:-1])", "b.shape[1]", "b.shape[0]"),
        (2, 2),
        "(m, k), (b_rows, n) = a.shape, b.shape",
        "m",
        flattens=True,
    ),
    "m_offsets": CallSizes(
        "a.dim() >= 2 and b.dim() == 3",
        ("math.prod(a.shape[:-1])", "b.shape[2]", "b.shape[1]", "b.shape[0]"),
        (2, 3),
        "(m, k), (_, b_rows, n) = a.shape, b.shape",
        "m",
        flattens=True,
        m="the rows of all groups",
    ),
    "m_masked": CallSizes(
        APART.condition,
        APART.sizes,
        APART.dimensions,
        APART.read_by_operator,
        APART.d,
        key=("expected_m",),
        chosen_by=("expected_m",),
        expects_rows=True,
        m=APART.m,
    ),
    "batched": APART,
    "k_offsets": CallSizes(
        "a.dim() == b.dim() == 2",
        ("a.shape[0]", "b.shape[1]", "b.shape[0]", "offs.numel()"),
        (2, 2),
        "(m, k), (b_rows, n), groups = a.shape, b.shape, offs.numel()",
        "groups, m",
        key=("offs.shape",),
        chosen_by=("offs",),
        m="the rows of A, and K the K of all groups",
    ),
}
"""By the kind of groups; None stands for one A and one B."""
