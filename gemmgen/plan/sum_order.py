"""In which order the products of one element of D are added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final, Literal

Parts = Literal["whole", "ordered", "parallel", "atomic"]
"""How the parts of K become one sum.

``whole``: K has one part, which one program adds up in the order of K. ``ordered``: the program that comes
last adds the sums of all parts to zero, in the order of K. ``parallel``: a second kernel adds them up.
``atomic``: each program adds its sum to memory when it comes.
"""


@dataclass(frozen=True)
class SumOrder:
    """The order in which the products of one element of D are added up.

    It has all that the bits of the sum depend on, beside the element's row of A and column of B. Kernels of
    one order give an element the same bits, if the order is fixed; their tiles, roles, clusters and rings may
    differ, and so may M and the row of the element. The sums of one matrix instruction are added up in an
    order of the hardware's own: ``mma_k`` says how many products that are, and the same operand types and
    accumulator stand for the same hardware order.
    """

    accumulator: str
    """The type in which products are added up."""
    mma_k: int = 0
    """Elements of K of one matrix instruction; the instructions of a part follow one another along K."""
    promote_k: int = 0
    """Elements of K after which a sum of products is added to one in full fp32; 0 for never."""
    splits: int = 1
    """Parts of K of a fixed number."""
    split_step: int = 0
    """Elements of K that each part is a multiple of; 0 for one part."""
    parts: Parts = "whole"
    side_by_side: int = 1
    """Parts whose sums different threads read at the same time.

    Each of these threads adds up its parts in the order of K, in steps of this number. Their sums are then
    added up by pairs: first those half of the number apart, then a quarter, and so on.
    """

    @property
    def fixed(self) -> bool:
        """True if the order is the same for every M and every row of D, and in every run."""
        return self.parts != "atomic"

    def difference(self, other: SumOrder) -> tuple[str, object, object] | None:
        """Return the first decision in which two orders differ and the values of both, None if none differs.

        The decision is the path of a field of a spec.
        """
        for field in fields(self):
            own, others = getattr(self, field.name), getattr(other, field.name)
            if own != others:
                return PATHS[field.name], own, others
        return None


PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accumulator": "accumulator",
        "mma_k": "operands.a.dtype",
        "promote_k": "mma.promote_k",
        "splits": "schedule.splits",
        "split_step": "tile.k",
        "parts": "schedule.reduction",
        "side_by_side": "schedule.splits",
    }
)
"""The path of the spec's field that decides each field of an order."""
