"""The order in which programs take parts of K: every part once, and those of a GPC side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from modules import module_file
from mutants.mutant import changed, product_of

from gemmgen.hardware.gpus import GPUS
from gemmgen.verify.launches import Launch, ragged
from gemmgen.verify.simulation import simulate_product
from gluonsim import Kind

RECORD = Path(__file__).parent.parent / "benchmarks" / "fit" / "h200_launch_order.json"
START = json.loads(RECORD.read_text(encoding="utf-8"))["start"]
CARDS = ("NVIDIA H200", "NVIDIA H100")
STEM = "h100_bf16_split8_parallel"
SM_COUNT = GPUS["h200"].sm_count


@dataclass
class Program:
    """What stands for ``gl``: Python's integers, and the numbers of one program."""

    programs: int
    number: int

    def program_id(self, _: int) -> int:
        return self.number

    def num_programs(self, _: int) -> int:
        return self.programs

    @staticmethod
    def where(condition: bool, yes: int, no: int) -> int:
        return yes if condition else no

    minimum = staticmethod(min)
    maximum = staticmethod(max)


def first_entries(programs: int) -> list[int]:
    """Return what a generated module's ``first_entry`` gives to each of so many programs.

    It is the module's own text. What Triton rounds otherwise, the quotients of negative numbers, is not used.
    """
    text = module_file(STEM).read_text(encoding="utf-8")
    function = re.search(r"def first_entry\(\):\n(?:(?:    .*)?\n)+", text)
    assert function
    constants = re.findall(r"^(\w+) = gl\.constexpr\((\d+)\)", text, re.MULTILINE)
    names: dict[str, Any] = {name: int(value) for name, value in constants}
    exec(function[0], names)
    found: list[int] = []
    for number in range(programs):
        names["gl"] = Program(programs, number)
        found.append(names["first_entry"]())
    return found


@pytest.mark.quick
def test_programs_begin_with_different_entries_however_many_there_are() -> None:
    for programs in range(1, SM_COUNT + 1):
        assert sorted(first_entries(programs)) == list(range(programs)), programs


def gpc_of(sm: int) -> int | None:
    """Return the GPC of an SM by the record: eight GPCs by turns, then seven; None for the last SMs."""
    if sm < 64:
        return sm // 2 % 8
    return 1 + (sm - 64) // 2 % 7 if sm < 120 else None


def together() -> list[tuple[str, Sequence[int]]]:
    return [(card, group) for card in CARDS for group in START[card]["together"]]


@pytest.mark.quick
@pytest.mark.parametrize(("card", "group"), together())
def test_sms_that_hold_a_large_cluster_are_of_one_gpc(card: str, group: Sequence[int]) -> None:
    assert card in CARDS
    assert len({gpc_of(sm) for sm in group} - {None}) <= 1


@pytest.mark.quick
def test_clusters_that_start_on_one_gpc_have_entries_side_by_side() -> None:
    order = first_entries(64)
    at: dict[int, list[int]] = {}
    for program, sm in enumerate(START["NVIDIA H200"]["64 clusters of 2"]):
        if (gpc := gpc_of(sm)) is not None:
            at.setdefault(gpc, []).append(order[program])
    assert {gpc: len(entries) for gpc, entries in at.items()} == {0: 4, **dict.fromkeys(range(1, 8), 8)}
    for entries in at.values():
        assert sorted(entries) == list(range(min(entries), min(entries) + len(entries)))


@pytest.mark.quick
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("clusters", [64, 66])
def test_whichever_gpc_is_first_groups_of_four_stay_together(card: str, clusters: int) -> None:
    order = first_entries(64)
    halves: dict[tuple[int, bool], list[int]] = {}
    for program, sm in enumerate(START[card][f"{clusters} clusters of 2"][:64]):
        if (gpc := gpc_of(sm)) is not None:
            halves.setdefault((gpc, sm < 64), []).append(order[program])
    for entries in halves.values():
        assert max(entries) - min(entries) == len(entries) - 1 == 3


PROGRAMS = 44
"""More than start on all GPCs by turns: so eight of them come later."""
LATER = "1 + (turn - CLUSTERS_OF_ALL_GPCS) % (GPCS - 1)"


def problems(*changes: tuple[str, str]) -> list[str]:
    """Return what the simulator says of a kernel, changed, where each of so many programs has a part."""
    product = product_of("h100_bf16_parallel_roles")
    plan = product.plan
    shape = ragged(plan, 1, PROGRAMS // plan.splits_per_tile, plan.splits_per_tile)
    launch = Launch(shape, PROGRAMS, "integers", ("random",))
    module = changed(product.module, changes, "a pinned kernel")
    return [problem.kind for problem in simulate_product(replace(product, module=module), (launch,)).problems]


def test_parts_of_many_programs_are_each_multiplied_once() -> None:
    assert problems() == []


def test_later_programs_that_begin_with_others_parts_are_found() -> None:
    assert Kind.WRONG_NUMBERS in problems((LATER, LATER.removeprefix("1 + ")))
