"""The operator that torch.compile and torch.export see of a grouped matmul: kernels, or torch if all refuse.

As for a layer, the choice is made when the operator runs: a kernel takes or refuses addresses and strides,
which torch does not guard, and the rows of a group are known then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from gemmgen.integrations.kernels import REFUSALS, raise_unless_refused
from gemmgen.integrations.operator import first_taken, in_units, new_d, registered

ATEN_NAME: Final = "_grouped_mm"
"""The name of torch's operator: ``aten::_grouped_mm`` is the same in all releases, its function is not."""
torchs: Final[Any] = getattr(cast(Any, torch.ops).aten, ATEN_NAME)
"""Torch's operator: ``(mat_a, mat_b, offs=None, bias=None, out_dtype=None)``."""


def product(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, kernels: Sequence[str], most_rows: Sequence[int]
) -> Tensor:
    """Return the D of the first kernel that takes a call; raise ValueError with all refusals if none does.

    Args:
        mat_a: A [M, K] with `offs`, [G, M, K] without.
        mat_b: B [G, K, N].
        offs: The end of each group [G], int32.
        kernels: The names of the kernels, in the order in which they are asked.
        most_rows: For each kernel the most rows of a group, in the mean of all groups, that it is asked for.
    """
    rows, groups = mat_a.shape[:-1].numel(), mat_b.shape[0]
    extras = {} if offs is None else {"offs": offs}

    def refused_rows(name: str, most: int) -> str:
        return f"{name} is for groups of up to {most} rows" if rows > most * groups else ""

    def compute(kernel: Any) -> Tensor:
        return kernel.matmul(mat_a, mat_b, **extras)

    return first_taken(kernels, refused_rows, most_rows, compute)


def compute(
    mat_a: Tensor, mat_b: Tensor, offs: Tensor | None, kernels: Sequence[str], most_rows: Sequence[int]
) -> Tensor:
    """Return D [M, N] or [G, M, N] with rows of whole 16-byte units; rows of no group have any values."""
    try:
        d = product(mat_a, mat_b, offs, kernels, most_rows)
    except REFUSALS as error:
        raise_unless_refused(error)
        d = torchs(mat_a, mat_b, offs)
    return in_units(d)


def shape(mat_a: Tensor, mat_b: Tensor, *_: object) -> Tensor:
    """Return D without memory."""
    return new_d(mat_a, mat_b.shape[-1])


grouped_mm: Final[Any] = registered(
    "grouped_mm",
    "(Tensor mat_a, Tensor mat_b, Tensor? offs, str[] kernels, int[] most_rows) -> Tensor",
    compute,
    shape,
)
