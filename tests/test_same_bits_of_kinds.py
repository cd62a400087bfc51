"""Each kind of kernel that promises batch invariance on a GPU: a row has the same bits in every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from batch_kinds import KINDS, ROWS, product_of
from drawn import random_inputs
from torch import Tensor

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import GPUS
from gemmgen.library.pinned import anonymous
from gemmgen.module import MatmulFunction, import_generated, matmul_of
from gemmgen.numerics.encoding import bits
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem.operations import OPERATIONS
from gemmgen.product import Product, staged
from gemmgen.spec import SpecFile

RAGGED = (416, 4128)
"""N and K, no multiples of a tile: the last columns and the last step of K are parts."""
EXTENTS: Mapping[str, tuple[int, int]] = {
    "misaligned": (417, 4127),
    "b200_mxfp8": (416, 4096),
    "b200_nvfp4": (416, 4096),
}
"""N and K of the kinds that need others."""
SHIFTS = (1, 63, 200)
"""Rows by which a batch is turned: each row then has another place in its tile, or another tile."""
BUILDS = (1, 4096)
"""M for which kernels are planned; each of them computes every batch."""


def rows_of(inputs: Inputs, rows: Tensor, spec: SpecFile) -> Inputs:
    """Return the same arguments for these rows of D, in this order."""
    by_row = {"c", "a_scale", *(name for name in spec.problem.vectors if OPERATIONS[name].along == "m")}
    extras = {name: tensor[rows] if name in by_row else tensor for name, tensor in inputs.extras.items()}
    return replace(inputs, a=inputs.a[rows], extras=extras)


def batches(device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield batches by name, as the numbers of their rows: the first ones, and some in another order."""
    every = torch.arange(ROWS[-1], device=device)
    for m in ROWS:
        yield f"M = {m}", every[:m]
    for shift in SHIFTS:
        turned = every.roll(shift)
        yield f"turned by {shift}", turned
        yield f"M = 300, turned by {shift}", turned[:300]


def built(kind: str, directory: Path) -> list[Product]:
    """Return the products of a kind's spec for small and for large M, without a second one of one kernel."""
    products = (product_of(kind, (m, *EXTENTS.get(kind, RAGGED)), directory) for m in BUILDS)
    return [*{anonymous(product.plan): product for product in products}.values()]


def differing(
    matmuls: Mapping[str, MatmulFunction], spec: SpecFile, shape: tuple[int, int, int], device: torch.device
) -> list[str]:
    """Return the batches in which a row has other bits than in the first module's largest one."""
    inputs = random_inputs(shape, spec.problem, torch.Generator(device).manual_seed(0))
    expected = bits(inputs.call(next(iter(matmuls.values())))).clone()
    return [
        f"{name}, {batch}"
        for name, matmul in matmuls.items()
        for batch, rows in batches(device)
        if not torch.equal(bits(rows_of(inputs, rows, spec).call(matmul)), expected[rows])
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_for_every_m_at_every_place_and_in_every_build(
    kind: str, tmp_path: Path
) -> None:
    try:
        device = require_gpu(GPUS[str(KINDS[kind]["target"])].architecture)
    except GemmgenError as error:
        pytest.skip(str(error))
    products = built(kind, tmp_path)
    with ExitStack() as stack:
        matmuls = {
            product.source.stem: matmul_of(import_generated(stack.enter_context(staged(product))))
            for product in products
        }
        shape = (ROWS[-1], *EXTENTS.get(kind, RAGGED))
        assert differing(matmuls, products[0].source, shape, device) == []


@pytest.mark.parametrize("kind", ["bf16", "second_kernel_24"])
def test_small_and_large_batches_get_different_modules(kind: str, tmp_path: Path) -> None:
    assert len(built(kind, tmp_path)) == 2


def test_the_batches_have_all_rows_and_other_places() -> None:
    found = dict(batches(torch.device("cpu")))
    assert len(found) == len(ROWS) + 2 * len(SHIFTS)
    assert {int(rows[0]) for rows in found.values()} == {0, *(ROWS[-1] - shift for shift in SHIFTS)}
