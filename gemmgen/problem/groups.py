"""Groups that one launch multiplies: experts of a mixture, their weight gradients, or batches."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
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
            shares = self._shares()
            return max(1, math.ceil(mean_rows * self.count * max(shares) / sum(shares))), n, k
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
        ``k_offsets`` have M. If M is 1 or more, so are the rows of all groups together.
        """
        return (m,) * self.count if self._has_all_rows else self._sizes(m, self._shares())

    def depths_of_each(self, k: int) -> tuple[int, ...]:
        """Return the K of each group: all, or a part that is found as the rows of ``m_offsets`` are."""
        return self._sizes(k, self._shares()) if self.divides_k else (k,) * self.count

    def filled(self, m: int) -> tuple[int, int]:
        """Return the number of groups that have a row of D, and the rows of all groups, for M rows."""
        if self._has_all_rows:
            return self.count * bool(m), self.count * m
        rows, each = self._sample(m)
        return round(each * sum(map(bool, rows))), round(each * sum(rows))

    def row_tiles(self, m: int, tile_rows: int) -> int:
        """Return the tiles of `tile_rows` rows of D that all groups have along M, for M rows."""
        if self._has_all_rows:
            return self.count * -(-m // tile_rows)
        rows, each = self._sample(m)
        return round(each * sum(-(-row // tile_rows) for row in rows))

    def mean_k_steps(self, k: int, depth: int) -> float:
        """Return the K steps of `depth` of a group, in the mean of all groups: each has one or more."""
        depths = self._sample(k)[0] if self.divides_k else (k,)
        steps = [max(1, -(-each // depth)) for each in depths]
        return sum(steps) / len(steps)

    @property
    def _has_all_rows(self) -> bool:
        """True if each group has all M rows."""
        return self.divides_k or self.counts is None

    def _sample(self, extent: int) -> tuple[tuple[int, ...], float]:
        """Return the sizes of groups that divide M or K, and the number of groups that each stands for.

        They are all groups, or, of more than `MOST_SAMPLED`, evenly spread ones of the shares by size.
        """
        stride = -(-self.count // MOST_SAMPLED)
        count = -(-self.count // stride)
        sample = replace(self, count=count, shares=_spread(self.shares[: self.count], stride))
        part = extent if self.apart else -(-extent * count // self.count)
        return sample._sizes(part, sample._shares()), self.count / count

    def _sizes(self, extent: int, shares: tuple[float, ...]) -> tuple[int, ...]:
        """Return the sizes of groups with these shares: all of an extent, or up to an extent each."""
        if not self.apart:
            return _divided(extent, shares)
        most = max(shares)
        return tuple(extent if share == most else int(extent * share / most) for share in shares)

    def _shares(self) -> tuple[float, ...]:
        """Return the sizes of the groups in proportion to each other, one of them more than 0."""
        stated = self.shares[: self.count]
        if any(stated):
            return stated + (0,) * (self.count - len(stated))
        if self.of == "m_masked" and self.skew is None:
            first = max(0, FULL_GROUP + 1 - self.count)  # fewer groups have the full one too
            return tuple(map(_masked_share, range(first, first + self.count)))
        return _drawn(self.count, 1 if self.skew is None else self.skew)


MOST_SAMPLED: Final = 512
"""Most groups whose sizes the time of a kernel is predicted from, for each kernel that is considered."""
MASKED_SHARES: Final = 10
"""Equal parts of M: each group of ``m_masked`` has rows in some of them."""
FULL_GROUP: Final = 3
"""The first group of ``m_masked`` with rows in all parts."""


@lru_cache(maxsize=4)
def _spread(shares: tuple[float, ...], stride: int) -> tuple[float, ...]:
    """Return all shares if `stride` is 1, else every `stride`-th one by size, from the largest on."""
    return tuple(sorted(shares, reverse=True)[::stride]) if stride > 1 else shares


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
