"""Groups that one launch multiplies: experts of a mixture, their weight gradients, or batches."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

GroupKind = Literal["m_offsets", "m_masked", "batched", "k_offsets"]
"""How a call divides A and B into groups.

``m_offsets``: A is [M, K], and ``offs`` [G] has the row after the last one of each group. ``m_masked``: A is
[G, M, K], and ``rows`` [G] has the number of rows of each group. ``batched``: A is [G, M, K], all of it. Each
group of these has a B [K, N] of its own. ``k_offsets``: A is [M, K] and B [K, N], ``offs`` [G] has the end of
each group along K, and each group has a D [M, N] of its own.
"""


@dataclass(frozen=True)
class _Division:
    """The properties of one kind of groups."""

    counts: str | None
    divides: Literal["m", "k"]
    stacked: str
    """The letters of the matrices that have a dimension for groups."""


_DIVISIONS: Final[dict[GroupKind, _Division]] = {
    "m_offsets": _Division("offs", "m", "b"),
    "m_masked": _Division("rows", "m", "abd"),
    "batched": _Division(None, "m", "abd"),
    "k_offsets": _Division("offs", "k", "d"),
}


@dataclass(frozen=True)
class Groups:
    """Groups of rows of A with a B [K, N] of their own, or groups of K with a D [M, N] of their own."""

    of: GroupKind
    count: int
    """The groups of the problems for which the kernel is planned, checked and timed."""
    broadcast: Literal["a", "b"] | None = None
    """The matrix that all groups share, as torch.matmul broadcasts it; None if each group has its own."""
    a_rows: bool = False
    """True if a call has an index of rows of A: row r of the product is of row ``a_rows[r]`` of A."""
    d_rows: bool = False
    """True if a call has an index of rows of D: row r of the product is stored to row ``d_rows[r]`` of D."""
    skew: float | None = None
    """Standard deviation of the logarithms of sizes; None for the default of the kind (`rows_of_each`)."""
    shares: tuple[int, ...] = ()
    """Expected sizes of the groups in proportion to each other; empty if `skew` draws them."""

    @property
    def row_indices(self) -> tuple[str, ...]:
        """The int32 vectors [M] of a call that are indices of rows."""
        return ("a_rows",) * self.a_rows + ("d_rows",) * self.d_rows

    @property
    def counts(self) -> str | None:
        """The int32 tensor in memory of the GPU that divides M or K; None if all groups have M rows."""
        return _DIVISIONS[self.of].counts

    @property
    def divides_k(self) -> bool:
        """True if the groups divide K: A and B are one matrix each, and D has one for each group."""
        return _DIVISIONS[self.of].divides == "k"

    @property
    def apart(self) -> bool:
        """True if D has M rows for each group, and A too unless all groups share it."""
        return "a" in _DIVISIONS[self.of].stacked

    def stacks(self, matrix: Literal["a", "b", "d"]) -> bool:
        """Return True if a matrix has a dimension for groups."""
        return matrix in _DIVISIONS[self.of].stacked and matrix != self.broadcast

    def spans(self, matrix: Literal["a", "b", "d"]) -> bool:
        """Return True if a matrix has a first dimension of groups, or of one that all groups share."""
        return matrix in _DIVISIONS[self.of].stacked

    def first_axis(self, matrix: Literal["a", "b", "d"]) -> str:
        """Return the first axis of a matrix: G of groups, 1 if all groups share it; empty if it has none."""
        return ("1" if matrix == self.broadcast else "G") * self.spans(matrix)

    def first_extent(self, matrix: Literal["a", "b", "d"]) -> int | None:
        """Return the extent of `first_axis`: the groups, or 1; None if the matrix has no such axis."""
        if not self.spans(matrix):
            return None
        return self.count if self.stacks(matrix) else 1

    def extent_of(self, shape: tuple[int, int, int]) -> int:
        """Return the extent of a problem [M, N, K] that the groups divide, in each matrix of A: M or K."""
        return shape[2] if self.divides_k else shape[0]

    def mean_extents(self, shape: tuple[int, int, int]) -> tuple[float, float, float]:
        """Return M, N and K of a group of a problem [M, N, K], in the mean of groups that divide one extent.

        M of groups with a dimension of A for them is the M of each.
        """
        m, n, k = shape
        if self.divides_k:
            return m, n, k / self.count
        return (m if self.apart else m / self.count), n, k

    def resized(
        self, shape: tuple[int, int, int], count: int, mean_rows: int | None = None
    ) -> tuple[int, int, int]:
        """Return the problem of `self.count` groups with the mean size of the groups of another problem.

        Args:
            shape: M, N and K of the other problem.
            count: The number of groups of the other problem.
            mean_rows: Rows that a group of ``m_masked`` has in the mean; None if they have from no row to M.

        Raises ValueError if `count` or `mean_rows` is less than 1.
        """
        if min(count, 1 if mean_rows is None else mean_rows) < 1:
            found = count if mean_rows is None else f"{count} with {mean_rows} rows"
            raise ValueError(f"a problem must have 1 group or more, and 1 row in the mean, found {found}")
        m, n, k = shape
        if self.divides_k:
            return m, n, -(-k * self.count // count)
        if mean_rows is not None:
            shares, most = self._shares(), self._most_share()
            return max(1, math.ceil(mean_rows * self.count * most / (sum(shares) or most))), n, k
        return (m if self.apart else -(-m * self.count // count)), n, k

    def all_rows(self, m: int) -> int:
        """Return the rows of D of a problem of M rows: M, or M for each group."""
        return m * self.count if self.stacks("d") else m

    def rows_of_each(self, m: int) -> tuple[int, ...]:
        """Return the rows of D of each group for M rows, as kernels are planned, checked and timed.

        Groups of ``m_offsets`` divide all M rows, in proportion to `shares` if a spec states them. Else they
        are drawn as the experts of tokens are: by softmax(z), with a normal z for each group whose standard
        deviation is `skew`, 1 by default. So some groups have several times the mean, and with few rows some
        have none; a skew of 0 gives all the same rows. The largest group of ``m_masked`` has M rows, the
        others fewer; without `skew` or `shares`, groups have from no row to M. Groups of ``batched`` and
        ``k_offsets`` have M.
        """
        if self.of == "m_masked":
            most = self._most_share()
            return tuple(int(m * share / most) for share in self._shares())
        if self.of == "m_offsets":
            return _divided(m, self._shares())
        return (m,) * self.count

    def depths_of_each(self, k: int) -> tuple[int, ...]:
        """Return the K of each group: all, or a part that is found as the rows of ``m_offsets`` are."""
        return _divided(k, self._shares()) if self.divides_k else (k,) * self.count

    def _shares(self) -> tuple[float, ...]:
        """Return the sizes of the groups in proportion to each other, whatever a spec states."""
        stated = (self.shares + (0,) * self.count)[: self.count]
        if any(stated):
            return stated
        if self.of == "m_masked" and self.skew is None:
            return tuple(map(_masked_share, range(self.count)))
        return _drawn(self.count, 1 if self.skew is None else self.skew)

    def _most_share(self) -> float:
        """Return the share of a group of ``m_masked`` with all M rows."""
        is_default = self.skew is None and not any(self.shares[: self.count])
        return MASKED_SHARES if is_default else max(self._shares())


MASKED_SHARES: Final = 10
"""Equal parts of M: each group of ``m_masked`` has rows in some of them."""


def _masked_share(group: int) -> int:
    """Return the number of parts with rows in a group of ``m_masked``: from 0 to `MASKED_SHARES`."""
    return group * 7 % (MASKED_SHARES + 1)


@lru_cache(maxsize=64)
def _drawn(groups: int, skew: float) -> tuple[float, ...]:
    """Return the weights exp(z) of groups, with a fixed normal z for each of a standard deviation."""
    draw = random.Random(0)
    return tuple(math.exp(draw.gauss(0, skew)) for _ in range(groups))


@lru_cache(maxsize=1024)
def _divided(rows: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Divide rows in proportion to weights; the rows that rounding leaves go to groups that lost the most."""
    total = sum(weights)
    exact = [rows * weight / total for weight in weights]
    found = [int(share) for share in exact]
    lost = sorted(range(len(weights)), key=lambda group: found[group] - exact[group])
    for group in lost[: rows - sum(found)]:
        found[group] += 1
    return tuple(found)
