"""The operator that torch.compile and torch.export see of a matmul with scales of blocks.

As for a layer, the choice is made when the operator runs: kernels take or refuse addresses and strides, which
torch does not guard. Torch computes what all kernels refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from gemmgen.integrations.kernels import BIAS, REFUSALS, raise_unless_refused
from gemmgen.integrations.operator import first_taken, in_units, new_d, registered

INFERRING_NAME: Final = "_scaled_mm"
"""The name of torch's older function and operator, which infer the recipe of scales from their shapes."""
ATEN: Final[Any] = cast(Any, torch.ops).aten
RECIPES: Final[Any] = getattr(functional, "ScalingType", None)
"""Torch's enumeration of recipes; None in releases without ``torch.nn.functional.scaled_mm``."""
ROWS, TILES = (
    int(getattr(RECIPES, name).value) if RECIPES else 0 for name in ("BlockWise1x128", "BlockWise128x128")
)
"""Torch's numbers of the recipes with a scale for 128 of K: of one row or column, and of 128 of them."""
BLOCK: Final = 128
"""Elements of K, and columns of B, that share a scale."""


def b_scale_of(scale_b: Tensor, k: int, recipe: int, *, inferred: bool) -> Tensor:
    """Return the scales of B with a row for each column of B, or for each 128 of them.

    Args:
        scale_b: As torch's function takes them. With a recipe, rows of tiles are padded to multiples of 4.
        k: The K of the product.
        recipe: ROWS or TILES.
        inferred: True for the tensors of torch's older function, whose scales of B are turned.
    """
    if inferred:
        return scale_b.T
    return scale_b.T[:, : -(-k // BLOCK)] if recipe == TILES else scale_b


class Functions(NamedTuple):
    """The functions of a module or library with scales of blocks; a copy of a layer has the same ones."""

    matmul: Callable[..., Tensor]
    arrange_scales: Callable[[str, Tensor], Tensor]

    @classmethod
    def of(cls, kernel: Any) -> Functions:
        """Return the functions of a module or library."""
        return cls(kernel.matmul, kernel.arrange_scales)


def multiplied(
    functions: Functions, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the D of a kernel, which gets a copy of scales that do not lie as it reads them.

    A is [M, K], B [K, N]; the scales have M rows, and a row for each column of B or for each 128 of them.
    Raises one of REFUSALS if the kernel refuses the tensors.
    """
    extras = {} if bias is None else {BIAS: bias}
    scales = {"a_scale": a_scale, "b_scale": b_scale}
    if all(each.dim() == 2 for each in scales.values()):  # the kernel refuses others in words
        scales = {name: functions.arrange_scales(name, each) for name, each in scales.items()}
    return functions.matmul(a, b, **scales, **extras)


def product(
    mat_a: Tensor,
    mat_b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    bias: Tensor | None,
    kernels: Sequence[str],
    most_rows: Sequence[int],
) -> Tensor:
    """Return the D of the first kernel that takes a call; raise ValueError with all refusals if none does.

    `most_rows` has for each kernel the most rows of A that it is asked for.
    """

    def refused_rows(name: str, most: int) -> str:
        return f"{name} is for up to {most} rows" if mat_a.shape[0] > most else ""

    def compute(kernel: Any) -> Tensor:
        return multiplied(Functions.of(kernel), mat_a, mat_b, a_scale, b_scale, bias)

    return first_taken(kernels, refused_rows, most_rows, compute)


def torchs(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    recipe: int,
    inferred: bool,
    out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> Tensor:
    """Return torch's D for 1 x 128 scales of A, and scales of B by a recipe; raise what torch raises."""
    if inferred:
        return getattr(ATEN, INFERRING_NAME)(
            mat_a, mat_b, scale_a, scale_b, bias, None, out_dtype, use_fast_accum
        )
    scales: tuple[list[Any], ...] = ([scale_a], [ROWS], [], [scale_b], [recipe], [])
    return ATEN._scaled_mm_v2(mat_a, mat_b, *scales, bias, out_dtype, [], use_fast_accum)


def compute(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    recipe: int,
    inferred: bool,
    out_dtype: torch.dtype,
    use_fast_accum: bool,
    kernels: Sequence[str],
    most_rows: Sequence[int],
) -> Tensor:
    """Return D [M, N] with rows of whole 16-byte units."""
    b_scale = b_scale_of(scale_b, mat_a.shape[1], recipe, inferred=inferred)
    try:
        d = product(mat_a, mat_b, scale_a, b_scale, bias, kernels, most_rows)
    except REFUSALS as error:
        raise_unless_refused(error)
        d = torchs(mat_a, mat_b, scale_a, scale_b, bias, recipe, inferred, out_dtype, use_fast_accum)
    return in_units(d)


def shape(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,  # noqa: ARG001 - the operator's signature
    scale_b: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    recipe: int,  # noqa: ARG001
    inferred: bool,  # noqa: ARG001
    out_dtype: torch.dtype,
    *_: object,
) -> Tensor:
    """Return D without memory."""
    return new_d(mat_a, mat_b.shape[1], out_dtype)


scaled_mm: Final[Any] = registered(
    "scaled_mm",
    "(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor? bias, int recipe, bool inferred, "
    "ScalarType out_dtype, bool use_fast_accum, str[] kernels, int[] most_rows) -> Tensor",
    compute,
    shape,
)
