"""In which order products are added up: one for every M and row, where a spec promises batch invariance."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import batch_kinds
import pytest
import torch
from batch_kinds import KINDS, ROWS, product_of, source_of
from drawn import random_inputs
from hopper import computing, hopper
from modules import SPECS, made
from torch import Tensor

from gemmgen.errors import GemmgenError
from gemmgen.module import import_generated
from gemmgen.numerics.encoding import as_float32, bits
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import _traced  # pyright: ignore[reportPrivateUsage]
from gemmgen.plan.sum_order import PATHS, SumOrder
from gemmgen.planner import family_for, family_of, plan_spec
from gemmgen.product import Product, make, staged
from gemmgen.verify.launches import Launch, programs_of
from gemmgen.verify.simulation import _Simulated  # pyright: ignore[reportPrivateUsage]
from gluonsim.memory import View
from gluonsim.operations import tensor_cores
from tools.fuzz.draft import drawn, spec_of

N, K = 256, 8192

# --- plans


@cache
def planned(kind: str, m: int) -> Kernel:
    return plan_spec(source_of(kind, (m, N, K)))


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", KINDS)
def test_every_m_gets_a_kernel_of_one_order(kind: str) -> None:
    (order,) = {planned(kind, m).sum_order for m in ROWS}
    assert order.fixed


def test_the_kernels_of_a_promise_differ_in_their_tiles() -> None:
    """Or equal orders would show nothing."""
    several = 0
    for kind in KINDS:
        plans = [planned(kind, m) for m in (1, 64, 4096)]
        several += len({(plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k) for plan in plans}) > 1
    assert several > len(KINDS) // 2


def test_two_builds_of_one_promise_add_up_24_parts_alike() -> None:
    few, many = (hopper(plan_spec(source_of("second_kernel_24", (m, 256, 65536)))) for m in (192, 768))
    assert {few.cta_tile_m, many.cta_tile_m} == {128, 192}
    assert few.sum_order == many.sum_order
    assert few.splits_side_by_side == 4


SUMMING = {"splits", "reduction", "promote_k", "cta_tile_k"}
"""What decides an order, as plans name it; a spec leaves nothing of it open where K is divided."""


def read_by(plan: Kernel) -> set[str]:
    """Return the decisions that a plan's order of sums depends on."""
    kind, read = _traced(type(plan))
    values: dict[str, Any] = {each.name: getattr(plan, each.name) for each in fields(plan)}
    traced: Any = kind(**values)
    read.clear()
    assert traced.sum_order == plan.sum_order
    return set(read)


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_depends_on_no_decision_that_m_may_change(kind: str) -> None:
    plan = planned(kind, 192)
    read = read_by(plan)
    assert read <= SUMMING
    if plan.splits_per_tile == 1:
        assert "cta_tile_k" not in read


def test_a_field_is_named_for_every_part_of_an_order() -> None:
    assert PATHS.keys() == {each.name for each in fields(SumOrder)}
    whole = SumOrder("fp32", 16)
    parts = replace(whole, splits=4, split_step=64, parts="ordered")
    assert whole.difference(whole) is None
    assert whole.difference(parts) == ("schedule.splits", 1, 4)
    assert parts.difference(replace(parts, split_step=128)) == ("tile.k", 64, 128)
    assert parts.difference(replace(parts, parts="parallel")) == ("schedule.reduction", "ordered", "parallel")


SEEDS = 16


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_all_kernels_of_a_random_spec_that_promises_the_same_bits_have_one_order(target: str) -> None:
    promising = 0
    for number in range(SEEDS):
        values, _ = drawn(target, 192, number)
        for path in ("tile.m", "tile.n", "mma.rows", "warps.m", "warps.n", "warp_specialization.consumers"):
            values.pop(path, None)
        spec = spec_of({**values, "batch_invariant": True}).spec
        source = replace(spec_of(values), spec=spec)
        try:
            plan_spec(source)
        except GemmgenError:
            continue
        family = family_of(source)
        kernels = (next(each.kernels()) for each in family.space.configurations(source, 60))
        orders = {kernel.sum_order for kernel in kernels if not family.judge(kernel)}
        promising += bool(orders)
        assert len(orders) <= 1, values
    assert promising >= SEEDS // 4


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_promise_is_refused_exactly_where_the_order_is_not_fixed(path: Path) -> None:
    plan = made(path).plan
    promising = computing(plan, batch_invariant=True, deterministic=False)
    found = {violation.rule for violation in family_for(plan).judge(promising)}
    assert ("same-bits" in found) == (not plan.sum_order.fixed)


# --- the choices of a spec


@pytest.mark.parametrize(
    ("values", "legal"),
    [(["ordered", "parallel"], False), (["ordered", "atomic"], True), (["parallel"], True)],
)
def test_reductions_to_choose_from_are_refused_where_two_could_be_taken(
    values: list[str], legal: bool
) -> None:
    more = {"search": {"schedule.reduction": values}, "tile": {"k": 64}, "schedule": {"splits": 4}}
    source = source_of("bf16", (192, N, K), **more)
    if legal:
        assert plan_spec(source).splits_per_tile == 4
        return
    with pytest.raises(GemmgenError, match=r"batch-invariance.*use \[ordered\] or \[parallel\]"):
        plan_spec(source)


# --- bits, in the simulator

SMALL_N = 40
"""Columns of the simulated problems: the last tile along N is ragged."""
BATCHES = (1, 5, 70, 131)
"""M of the simulated batches; of the largest one the others are the first rows."""
SIMULATED = {
    "bf16": 200,
    "exchanged": 200,
    "ping_pong": 200,
    "composed": 200,
    "staggered": 300,
    "promoted": 300,
    "split_tiled": 400,
    "split_exchanged": 1000,
    "split_persistent": 1000,
    "split_cluster": 400,
    "second_kernel_15": 2000,
    "second_kernel_24": 3000,
    "b200_bf16": 200,
    "b200_one_cta": 200,
}
"""Kinds of kernels that are simulated, and the least K at which each has several K steps and parts."""


RESIDENT = 5
"""Programs of a persistent kernel: more than a batch has tiles along M, or fewer."""


def in_instructions(
    a: View | Tensor, b: View | Tensor, accumulator: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return a @ b + accumulator, rounded to fp32 after every matrix instruction and nowhere else.

    What the simulator has in place of it adds up a K step as the CPU's library does, whose order depends on
    the tile.
    """
    left, right = (each.data if isinstance(each, View) else each for each in (a, b))
    step = 32 // left.element_size()
    left, right = as_float32(left).double(), as_float32(right).double()
    total = torch.zeros(left.shape[0], right.shape[1]) if accumulator is None else accumulator.float()
    for k in range(0, left.shape[1], step):
        total = (total.double() + left[:, k : k + step] @ right[k : k + step]).float()
    return total.to(dtype)


@pytest.fixture
def by_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_cores, "product", in_instructions)


def computed(product: Product, module: ModuleType, inputs: Inputs, rows: Collection[int]) -> Tensor:
    """Return the bits of these rows of A's product, as a batch of their own."""
    a = inputs.a[list(rows)]
    m, n, k = len(rows), *inputs.shape[1:]
    programs = programs_of(product.plan, (m, n, k), RESIDENT)
    launch = Launch((m, n, k), programs, "normal", ("eager",))
    simulated = _Simulated(module, product, launch, 0, 1)
    d = Matrix.poisoned(m, n, product.source.problem.d.name, a.device).view
    copied = torch.empty_strided(a.shape, (k, 1), dtype=a.dtype).copy_(a)
    found = replace(inputs, a=copied).call(simulated, d)
    assert not simulated.result.findings
    return bits(found)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.usefixtures("by_instructions")
def test_a_row_has_the_same_bits_for_every_m_at_every_place_and_in_every_build(
    kind: str, tmp_path: Path
) -> None:
    unit = 64 // (1 if "e4m3" in str(KINDS[kind]["operands"]) else 2)
    shape = (BATCHES[-1], SMALL_N, SIMULATED[kind] // unit * unit)
    built = {
        product.module: product
        for product in (product_of(kind, (m, *shape[1:]), tmp_path) for m in (1, 192, 768))
    }
    inputs = random_inputs(shape, next(iter(built.values())).source.problem, torch.Generator().manual_seed(0))
    expected: Tensor | None = None
    with ExitStack() as stack:
        for product in built.values():
            module = import_generated(stack.enter_context(staged(product)))
            every = range(shape[0])
            found = computed(product, module, inputs, every)
            expected = found if expected is None else expected
            assert torch.equal(found, expected), "another build"
            for m in BATCHES[:-1]:
                assert torch.equal(computed(product, module, inputs, every[:m]), expected[:m]), m
            turned = [*every[67:], *every[:67]]
            assert torch.equal(computed(product, module, inputs, turned), expected[turned]), "another place"


@pytest.mark.usefixtures("by_instructions")
def test_bits_show_another_order_of_sums(tmp_path: Path) -> None:
    """Or equal bits of one order would show nothing."""
    found: list[Tensor] = []
    for parts in (3, 4):
        sections = batch_kinds.of("bf16", "fp32", **batch_kinds.split(parts, 64, tile={"m": 64, "n": 64}))
        path = tmp_path / f"parts_{parts}.yaml"
        path.write_text(json.dumps({"title": f"{parts} parts of K", **sections}))
        product = make(path)
        inputs = random_inputs((131, SMALL_N, 1000), product.source.problem, torch.Generator().manual_seed(0))
        with staged(product) as staged_module:
            found.append(computed(product, import_generated(staged_module), inputs, range(131)))
    assert not torch.equal(*found)
