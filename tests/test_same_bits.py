"""Batch-invariant and deterministic specs: what `gemmgen test` finds, and what a GPU gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn import random_inputs
from hopper import hopper
from right_kernel import kernel, module_of
from torch import Tensor

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.module import import_generated, matmul_of
from gemmgen.numerics.encoding import bits
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem.operations import OPERATIONS
from gemmgen.product import Product, make, staged
from gemmgen.spec import Spec, SpecFile
from gemmgen.verify import verify

SHAPE = (13, 24, 40)
NAME = "batch invariance: elements that differ in "


def spec(*ops: str, invariant: bool = True, a: str = "bf16", majors: str = "kk", c: str = "") -> SpecFile:
    major = {"k": "k", "m": "mn"}
    operands: dict[str, object] = {
        "a": {"dtype": a, "major": major[majors[0]]},
        "b": {"dtype": a, "major": major[majors[1]]},
        "d": {"dtype": "bf16"},
        **({"c": {"dtype": c}} if c else {}),
    }
    return SpecFile.of(
        Spec.model_validate(
            {
                "title": "t",
                "target": "h200",
                "operands": operands,
                "batch_invariant": invariant,
                "epilogue": {"ops": list(ops)},
            }
        )
    )


def checks(found: SpecFile, matmul: Any) -> tuple[set[str], set[str]]:
    """The checks of a kernel that computes on the CPU, and those of them that failed."""
    verification = verify(module_of(matmul), found, [SHAPE], repeats=2, device="cpu")
    made = {check.what for check in verification.checks if check.what.startswith(NAME)}
    return made, {check.what for check in verification.failures}


# --- what `gemmgen test` finds


def test_a_batch_invariant_spec_has_checks_of_other_batches_and_others_have_not() -> None:
    # One row, three, two thirds of 13, and 200 more.
    assert checks(spec(), kernel(spec())) == ({f"{NAME}{rows} rows" for rows in (1, 3, 9, 213)}, set())
    assert checks(spec(invariant=False), kernel(spec(invariant=False))) == (set(), set())


@pytest.mark.parametrize(
    ("ops", "more"),
    [
        (("row_scale", "column_scale", "row_bias"), {}),
        (("tensor_scale", "residual", "relu"), {"c": "bf16"}),
        (("column_bias", "silu"), {"majors": "mm"}),
        ((), {"a": "int8"}),
    ],
)
def test_all_that_a_row_depends_on_goes_with_it(ops: tuple[str, ...], more: dict[str, Any]) -> None:
    found = spec(*ops, **more)
    assert checks(found, kernel(found))[1] == set()


def test_a_bit_that_depends_on_m_is_found() -> None:
    found = spec()
    right = kernel(found)

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = right(a, b, out=out)
        if a.shape[0] < 9:
            d.view(torch.int16)[-1, -1] += 1
        return d

    failed = {what for what in checks(found, matmul)[1] if what.startswith(NAME)}
    assert failed == {f"{NAME}1 rows", f"{NAME}3 rows"}


def test_a_bit_that_depends_on_the_place_of_a_row_is_found() -> None:
    found = spec()
    right = kernel(found)

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = right(a, b, out=out)
        d.view(torch.int16)[64:, 0] += 1  # of the second tile
        return d

    assert checks(found, matmul)[1] == {f"{NAME}213 rows"}


# --- modules that promise the same bits

N, K = 416, 2064
"""Neither a multiple of a tile: the last columns and the last step of K are ragged."""
MOST = 300
ROWS = (*range(1, 34), *range(40, MOST, 13), 63, 64, 65, 127, 128, 129, 255, 256, 257, MOST)
RUNS = 50
Sections = dict[str, Any]


def exchanged(m: int, k: int, **schedule: object) -> Sections:
    """Without roles, tiles of few rows."""
    return {
        "mma": {"rows": "n"},
        "tile": {"m": m, "n": 64, "k": k},
        "schedule": {"kind": "tiled", **schedule},
    }


def roles(kind: str, m: int, n: int, k: int, **more: object) -> Sections:
    return {"warp_specialization": {"kind": kind}, "tile": {"m": m, "n": n, "k": k}, **more}


OPEN: dict[str, Sections] = {
    "open_1_to_16": {"problem": {"m": [1, 16], "n": N, "k": K}},
    "open_17_to_64": {"problem": {"m": [17, 64], "n": N, "k": K}},
    "open_65_to_300": {"problem": {"m": [65, 300], "n": N, "k": K}},
    "open_4096": {"problem": {"m": 4096, "n": 4096, "k": 4096}},
}
"""What the planner takes for several M."""
BF16: dict[str, Sections] = {
    **OPEN,
    "cooperative": roles("cooperative", 128, 256, 64),
    "ping_pong_cluster": roles("ping_pong", 64, 128, 64, cluster={"m": 2}),
    "narrow": roles("cooperative", 64, 64, 128, mma={"n": 32}),
    "from_registers": roles(
        "cooperative", 128, 128, 64, operands={"a": {"dtype": "bf16", "source": "registers"}}
    ),
    "tiled": {"tile": {"m": 64, "n": 128, "k": 64}, "schedule": {"kind": "tiled"}, "occupancy": 2},
    "exchanged_8": exchanged(8, 128),
    "exchanged_64": exchanged(64, 256),
    "exchanged_roles": roles("ping_pong", 32, 128, 64, mma={"rows": "n"}),
}
SPLIT = {
    f"split_{m}_{n}": exchanged(m, 128, splits=4) | {"tile": {"m": m, "n": n, "k": 128}}
    for m, n in ((8, 64), (16, 128), (64, 64), (128, 64))
}
"""K in four parts of whole steps of 128."""
EPILOGUE = {"epilogue": {"ops": ["row_scale", "column_bias", "gelu_tanh"]}}
E4M3: dict[str, Sections] = {
    **OPEN,
    "cooperative": roles("cooperative", 128, 256, 128),
    "exchanged_16": exchanged(16, 256),
}
PROMOTED: dict[str, Sections] = {
    name: {**sections, "mma": {**sections.get("mma", {}), "promote_k": 128}}
    for name, sections in {
        **OPEN,
        "cooperative": roles("cooperative", 128, 128, 128),
        "ping_pong": roles("ping_pong", 64, 64, 128),
    }.items()
}
FAMILIES: dict[str, tuple[str, Sections, dict[str, Sections]]] = {
    "bf16": ("bf16", {}, BF16),
    "bf16 in four parts": ("bf16", {}, SPLIT),
    "bf16 with an epilogue": ("bf16", EPILOGUE, BF16),
    "e4m3": ("e4m3", {}, E4M3),
    "e4m3, promoted": ("e4m3", EPILOGUE, PROMOTED),
}
"""Kernels by name that have the same bits: the type of their operands, what all state, and what each does."""


def products(family: str, directory: Path) -> dict[str, Product]:
    """Return what follows from the specs of a family."""
    dtype, shared, kernels = FAMILIES[family]
    found: dict[str, Product] = {}
    for name, sections in kernels.items():
        operands = {"a": {"dtype": dtype}, "b": {"dtype": dtype}, "d": {"dtype": "bf16"}}
        whole: Sections = {
            "title": name,
            "target": "h200",
            "deterministic": True,
            "batch_invariant": True,
            **shared,
            **sections,
            "operands": operands | sections.get("operands", {}),
        }
        path = directory / f"{name}.yaml"
        path.write_text(json.dumps(whole))
        found[name] = make(path)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernels_of_a_family_differ(family: str, tmp_path: Path) -> None:
    plans = {name: hopper(product.plan) for name, product in products(family, tmp_path).items()}
    tiles = {(plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k, plan.swap_ab) for plan in plans.values()}
    assert len(tiles) >= 3
    (splits,) = {plan.splits for plan in plans.values()}
    assert splits == (4 if family == "bf16 in four parts" else 1)
    (promoted,) = {plan.promote_k for plan in plans.values()}
    assert promoted == (128 if family == "e4m3, promoted" else 0)
    if "open_4096" in plans:
        assert plans["open_1_to_16"].cta_tile_m < plans["open_4096"].cta_tile_m


def first_rows(inputs: Inputs, rows: int, found: SpecFile) -> Inputs:
    """Return the same arguments for the first rows alone."""
    by_row = {name for name in found.problem.vectors if OPERATIONS[name].along == "m"}
    extras = {name: tensor[:rows] if name in by_row else tensor for name, tensor in inputs.extras.items()}
    return replace(inputs, a=inputs.a[:rows], extras=extras)


@pytest.fixture
def device() -> Iterator[torch.device]:
    try:
        yield require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_has_the_same_bits_in_every_run_for_every_m_and_in_every_module(
    family: str, tmp_path: Path, device: torch.device
) -> None:
    made = products(family, tmp_path)
    whole = next(iter(made.values())).source
    generator = torch.Generator(device).manual_seed(0)
    inputs = random_inputs((MOST, N, K), whole.problem, generator)
    differing: dict[str, list[str]] = {name: [] for name in made}
    expected: Tensor | None = None
    with ExitStack() as stack:
        for name, product in made.items():
            matmul = matmul_of(import_generated(stack.enter_context(staged(product))))
            found = bits(inputs.call(matmul)).clone()
            expected = found if expected is None else expected
            if not torch.equal(found, expected):
                count = int((found != expected).sum().item())
                differing[name].append(f"{count} elements unlike those of {next(iter(made))}")
            runs = sum(not torch.equal(bits(inputs.call(matmul)), found) for _ in range(RUNS))
            if runs:
                differing[name].append(f"{runs} of {RUNS} runs")
            rows = [
                m for m in ROWS if not torch.equal(bits(first_rows(inputs, m, whole).call(matmul)), found[:m])
            ]
            if rows:
                differing[name].append(f"M = {', '.join(map(str, rows))}")
    assert {name: found for name, found in differing.items() if found} == {}
