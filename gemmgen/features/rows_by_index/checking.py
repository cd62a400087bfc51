"""The inputs and the exact result of rows by an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.numerics.inputs import ComputedRows, Inputs
from gemmgen.numerics.matrices import Layout
from gemmgen.numerics.side import Checking
from gemmgen.numerics.torch_call import Head
from gemmgen.problem import Matmul

OUTSIDE = (-1, -(1 << 31), 1 << 30)
"""Indices outside of every matrix."""


@dataclass(frozen=True)
class IndexNumbers(Checking):
    """Numbers of a matmul whose rows of A, or of D, an index names."""

    indices: tuple[str, ...]
    """The int32 vectors [M] of a call: ``a_rows``, ``d_rows`` or both."""

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:
        """Return the indices, which are random in any drawing."""
        return {name: partial(_index, name, layout) for name in self.indices}

    def parts(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs with the rows of A that are multiplied."""
        extras = dict(inputs.extras)
        index = extras.pop("a_rows", None)
        yield inputs if index is None else replace(inputs, a=gathered(inputs.a, index), extras=extras)

    def rows(self, inputs: Inputs, rows: ComputedRows) -> ComputedRows:
        """Return the rows where they are scattered; a row whose index is outside of D is left out."""
        if (index := inputs.extras.get("d_rows")) is None:
            return rows
        of_product = torch.cat([index[first:end] for first, end in rows.ranges])
        kept = inside(of_product, len(rows.d))
        scattered = of_product[kept].long()
        return replace(rows, ranges=((0, len(scattered)),), index=scattered, kept=kept)

    def head(self, *, fast_accum: bool) -> Head | None:  # noqa: ARG002
        """Raise GemmgenError (``no-baseline``): torch multiplies no rows by an index."""
        message = "torch has no matmul of rows by an index"
        raise GemmgenError([Diagnostic("torch", "no-baseline", message)])


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of a matmul's indices of rows; None if it has no index."""
    indices = problem.groups.row_indices if problem.groups else ()
    return IndexNumbers(indices) if indices else None


def _index(name: str, layout: Layout) -> Tensor:
    m, draw = layout.shape[0], layout.draw
    if draw is None:
        return torch.empty(m, dtype=torch.int32, device=layout.device)
    return drawn_index(name, m, draw.generator, hostile=draw.hostile)


def drawn_index(name: str, m: int, generator: torch.Generator, *, hostile: bool = False) -> Tensor:
    """Return a random int32 index [M] of M rows: ``d_rows`` has each once, ``a_rows`` some several times.

    A third of the numbers of a hostile index is outside of all rows.
    """
    device = generator.device
    if name == "d_rows":
        index = torch.randperm(m, generator=generator, device=device)
    else:
        index = torch.randint(m, (m,), generator=generator, device=device)
    if hostile:
        rows = (*OUTSIDE, m)
        for at, row in enumerate(rows):
            index[at :: 3 * len(rows)] = row
    return index.to(torch.int32)


def inside(index: Tensor, rows: int) -> Tensor:
    """Return which numbers of an index are rows of a matrix with `rows` rows."""
    return (index >= 0) & (index < rows)


def gathered(matrix: Tensor, index: Tensor) -> Tensor:
    """Return the rows of a matrix [R, K] that an index names; a row outside of the matrix is zeros."""
    rows = len(matrix)
    as_bytes = matrix.contiguous().view(torch.uint8)  # torch cannot fill all of its 8-bit floats
    padded = torch.cat([as_bytes, torch.zeros_like(as_bytes[:1])])
    return padded[index.long().where(inside(index, rows), rows)].view(matrix.dtype)
