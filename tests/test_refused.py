"""Why rules refuse what compiles: the reason of each, as far as a module or the simulator shows it."""

from __future__ import annotations

import re

import pytest

from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.lower import lower
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import altered
from gemmgen.planner import attempted
from gemmgen.product import Product
from gemmgen.triton_api import disassemble
from gemmgen.verify.launches import Launch, ring_launch
from gemmgen.verify.simulation import simulate_product
from tools.fuzz import draft, judge, tables

PLAIN: tables.Values = {
    "title": "what is refused",
    "target": "h100",
    **{f"operands.{name}.dtype": "bf16" for name in "abd"},
    "tile.m": 128,
    "tile.n": 64,
    "tile.k": 64,
    "warp_specialization.kind": "cooperative",
    "schedule.kind": "persistent",
}


A_IN_REGISTERS: tables.Values = {
    "operands.a.source": "registers",
    "tile.m": 64,
    "warp_specialization.consumers": 1,
    "buffering.outstanding_mmas": 1,
}


def product_without(rule: str, changed: tables.Values) -> Product:
    """What follows from a spec that a rule alone refuses, without that rule."""
    source = draft.spec_of(PLAIN | changed)
    found = attempted(source)
    assert not isinstance(found, Kernel)
    assert {violation.rule for violation in found} == {rule}
    plan = judge.plan_without(source, (rule,))
    assert plan is not None
    return Product(source, plan, text_of(plan))


def text_of(plan: Kernel) -> str:
    """The module of a plan."""
    return render(plan, spec_name="refused.yaml", spec_sha256="0" * 64)


def on_the_gpu(text: str) -> str:
    """The device functions and constants of a module, which end where the wrapper begins."""
    return text[text.index("# A program is") : text.index("\nARGUMENTS = {")]


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("schedule-kind", {"schedule.kind": "tiled"}),
        ("ring-depth", {"warp_specialization.kind": "none", "buffering.stages": 1}),
    ],
    ids=["roles_and_one_tile", "one_role_and_many_tiles"],
)
def test_a_program_of_one_tile_has_no_walk_over_tiles(rule: str, changed: tables.Values) -> None:
    """The compiler says so: a module with a tile for each program has no `Tiles`, and no number of tiles."""
    product = product_without(rule, changed)
    with pytest.raises(GemmgenError, match="tiles is not defined"):
        lower(product.module, product.plan, path="x", stem="x")


@pytest.mark.parametrize("order", ["row", "column"])
def test_an_order_of_lines_reads_no_width(order: str) -> None:
    grouped = product_without("group-width", {"schedule.order": order, "schedule.width": 8})
    assert on_the_gpu(grouped.module) == on_the_gpu(text_of(altered(grouped.plan, width=1)))


@pytest.mark.parametrize("width", [3, 6])
def test_a_curve_through_a_square_of_another_side_leaves_tiles_out(width: int) -> None:
    odd = product_without("group-width", {"schedule.order": "hilbert", "schedule.width": width})
    shape = (width * odd.plan.program_tile_m, width * odd.plan.program_tile_n, 64)
    found = simulate_product(odd, (Launch(shape, 1, "integers", ("eager",)),)).diagnostics
    assert found, "all tiles are computed"
    even = altered(odd.plan, width=4)
    whole = Product(odd.source, even, text_of(even))
    assert simulate_product(whole, (Launch(shape, 1, "integers", ("eager",)),)).diagnostics == ()


def test_registers_of_roles_that_are_not_there_are_in_no_code() -> None:
    changed: tables.Values = {"warp_specialization.kind": "none", "schedule.kind": "tiled"}
    registers = {"warp_specialization.registers.producer": 40}
    asked = product_without("role-registers", changed | registers)
    assert on_the_gpu(asked.module) == on_the_gpu(text_of(altered(asked.plan, producer_registers=0)))


def test_an_mma_in_flight_has_registers_into_which_the_next_a_is_read() -> None:
    product = product_without("outstanding-mmas", A_IN_REGISTERS)
    lowered = lower(product.module, product.plan, path="refused.yaml", stem="refused")
    code = disassemble(lowered.artifacts["cubin"]).decode()
    read = re.findall(r"(LDSM)\S+ (R\d+)|(HGMMA)\S+ R\d+, (R\d+),|(DEPBAR)\.LE gsb0, (0x\d)", code)
    events = ["".join(found) for found in read]
    # The body of the loop, of 64 elements of K, is between the waits before it and behind it.
    first, last = (i for i, event in enumerate(events) if event == "DEPBAR0x1")
    body = events[first + 1 : last]
    loaded = [event.removeprefix("LDSM") for event in body if event.startswith("LDSM")]
    multiplied = [event.removeprefix("HGMMA") for event in body if event.startswith("HGMMA")]
    assert loaded == multiplied
    assert len(set(loaded)) == 4


PROMOTED: tables.Values = {f"operands.{name}.dtype": "e4m3" for name in "ab"} | {"tile.k": 128}


@pytest.mark.parametrize(("promote_k", "outstanding"), [(64, 0), (128, 1)])
def test_sums_are_promoted_after_each_k_step_whatever_the_numbers_say(
    promote_k: int, outstanding: int
) -> None:
    changed: tables.Values = {"mma.promote_k": promote_k, "buffering.outstanding_mmas": outstanding}
    stated = product_without("promotion", PROMOTED | changed)
    legal = altered(stated.plan, promote_k=128, outstanding_mmas=0)
    assert on_the_gpu(stated.module) == on_the_gpu(text_of(legal))


def test_the_first_consumer_has_other_registers_than_a_request_that_the_pool_does_not_hold() -> None:
    changed: tables.Values = {
        "warp_specialization.consumers": 2,
        "warp_specialization.registers.consumer": 240,
        "warp_specialization.registers.producer": 40,
    }
    product = product_without("register-pool", changed)
    lowered = lower(product.module, product.plan, path="refused.yaml", stem="refused")
    assert product.plan.register_pool.default_registers == 224
    assert {224, 240} <= {*lowered.resources.setmaxnreg}


def test_one_stage_is_not_enough_where_another_step_is_on_its_way() -> None:
    product = product_without("ring-depth", {"buffering.outstanding_mmas": 1, "buffering.stages": 1})
    found = simulate_product(product, (ring_launch(product.plan),)).diagnostics
    assert "deadlock" in {diagnostic.code for diagnostic in found}
