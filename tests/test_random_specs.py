"""Random specs: what the rules accept compiles as planned, and what they reject is given a reason.

``GEMMGEN_RANDOM_SPECS=1000`` compiles that many of the accepted ones instead of a few, and
``GEMMGEN_RANDOM_FEW_ROWS=300`` that many of those for few rows of A, which are simulated too, and
``GEMMGEN_RANDOM_COMPOSED=300`` that many of those of composed tiles, ``GEMMGEN_RANDOM_STREAM_K=300`` of those
with a divided last wave.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import prod
from pathlib import Path

import pytest
from random_specs import composed, few_rows, stream_k
from random_specs.fields import furthest
from random_specs.hopper import BORDER, spec_text
from test_render import ruff

from gemmgen.errors import GemmgenError
from gemmgen.lower import lower
from gemmgen.plan import plan_spec
from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import FAMILIES, family_of
from gemmgen.plan.search import Family
from gemmgen.product import Product
from gemmgen.render import render
from gemmgen.spec import SpecFile, load_spec
from gemmgen.verify.simulation import Launch, order_launch, parts_launch, ring_launch, simulate_product

LOWERED = int(os.environ.get("GEMMGEN_RANDOM_SPECS", "60"))
"""Accepted specs that are compiled, two to three seconds each."""
FEW_ROWS_LOWERED = int(os.environ.get("GEMMGEN_RANDOM_FEW_ROWS", "12"))
"""Accepted specs for few rows that are compiled and simulated, three seconds each."""
COMPOSED_LOWERED = int(os.environ.get("GEMMGEN_RANDOM_COMPOSED", "12"))
"""Accepted specs of composed tiles that are compiled and simulated, four seconds each."""
STREAM_K_LOWERED = int(os.environ.get("GEMMGEN_RANDOM_STREAM_K", "12"))
"""Accepted specs whose last wave is divided that are compiled and simulated, five seconds each."""
HOPPER = FAMILIES["wgmma"]
FEW_ROWS_RULES = ("splits", "reduction", "same-bits", "dependent-launch", "exchanged-operands")
"""Of fields that only specs for few rows state."""
COMPOSED_RULES = ("composed-tile",)
"""Of columns that only specs of composed tiles have."""
STREAM_K_RULE = "last-wave"
"""Of a field that only specs whose last wave is divided state."""
SEEDS_APART = 1_000
"""Between the first seeds tried for two of them: far more than are tried."""

SpecText = Callable[[int], str]
"""Makes the text of a spec of a seed."""


def load(text: str, directory: Path) -> SpecFile:
    path = directory / "random_spec.yaml"
    path.write_text(text)
    return load_spec(path)


def rule_ids(family: Family[Kernel]) -> set[str]:
    return {rule.id for rule in family.rules}


CODES = {rule.id for rule in CHOICE_RULES}.union(*map(rule_ids, FAMILIES.values()))
"""Of all reasons: a random target can be another family's."""


def assert_reasons(source: SpecFile, error: GemmgenError) -> None:
    """Each reason is a rule's, at a place, with what was found, the limit and a fix; none is given twice."""
    blamed = [(found.code, found.field) for found in error.diagnostics]
    assert blamed
    assert len(set(blamed)) == len(blamed)
    for found in error.diagnostics:
        assert found.code in CODES
        assert found.field
        assert (found.line, found.column) == source.locate(found.field)
        assert re.fullmatch(r"[^;]+, [^;]+; (use|leave) (at (most|least) )?[0-9a-z[].*", found.message)


def assert_neither_tame_nor_wild(
    texts: Iterable[str], family: Family[Kernel], directory: Path, *, out_of_reach: Iterable[str] = ()
) -> None:
    """Each is planned or told why not; a fifth passes, and of the rules in reach at least half are tried."""
    sources = [load(text, directory) for text in texts]
    legal, codes = 0, set[str]()
    for source in sources:
        try:
            plan = plan_spec(source)
        except GemmgenError as error:
            assert_reasons(source, error)
            codes |= {found.code for found in error.diagnostics}
        else:
            legal += 1
            assert family_of(source.spec).judge(plan) == ()
    assert legal >= len(sources) // 5
    within_reach = rule_ids(family) - {*out_of_reach}
    assert len(codes & within_reach) >= len(within_reach) // 2


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_a_random_spec_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    texts = map(spec_text, range(first_seed, first_seed + 50))
    assert_neither_tame_nor_wild(
        texts, HOPPER, tmp_path, out_of_reach=(*FEW_ROWS_RULES, *COMPOSED_RULES, STREAM_K_RULE)
    )


def accepted(
    index: int,
    text_of: SpecText,
    family: Family[Kernel],
    border: Sequence[tuple[str, int]],
    directory: Path,
) -> tuple[SpecFile, Kernel]:
    """The first legal spec with a tile of its own, of those of an index; at the border if that is odd."""
    for seed in count(SEEDS_APART * (index + 1)):
        source = load(text_of(seed), directory)
        if source.spec.tile.n and source.spec.tile.k and family_of(source.spec) is family:
            try:
                plan = plan_spec(source)
            except GemmgenError:
                continue
            return source, furthest(plan, border, family) if index % 2 else plan
    raise AssertionError


@pytest.mark.parametrize("index", range(LOWERED))
def test_an_accepted_spec_compiles_as_planned(index: int, tmp_path: Path) -> None:
    """Lowering fails if memory, registers or instruction differ from the plan's, and if a register spills."""
    source, plan = accepted(index, spec_text, HOPPER, BORDER, tmp_path)
    assert_compiled_as_planned(source, plan)


def assert_compiled_as_planned(source: SpecFile, plan: Kernel) -> Product:
    module = render(plan, spec_name="random.yaml", spec_sha256="0" * 64)
    lowered = lower(module, plan, path="random.yaml", stem="random")
    assert lowered.resources.smem_bytes == plan.smem_bytes
    return Product(source, plan, module)


def assert_clean(module: str) -> None:
    """The formatter and the linter find nothing in a module, were it committed."""
    for command in (("format", "--diff"), ("check",)):
        found = ruff(*command, "--stdin-filename", "generated/random.py", "-", text=module)
        assert found.returncode == 0, found.stdout + found.stderr


# --- few rows of A

MOST_PRODUCTS = 3 * 10**8
"""Of a launch that is simulated, a second for each schedule."""
MOST_TILES = 200
"""Of one, with a program for each part of K."""


def launches(plan: Kernel) -> Iterator[Launch]:
    """One that wraps the ring; one of less than a tile of rows with less K than programs; one of groups."""
    ring, order = ring_launch(plan), order_launch(plan)
    if prod(ring.shape) > MOST_PRODUCTS:
        k = (2 * plan.splits_per_tile + 3) * plan.cta_tile_k - plan.cta_tile_k // 3
        shape = plan.program_tile_m - plan.program_tile_m // 3, 2 * plan.program_tile_n - 5, k
        ring = replace(ring, shape=shape, wraps=False)
    yield ring
    if plan.schedule_kind == "single_tile":
        return
    rows, steps = max(1, plan.program_tile_m // 2 - 1), max(1, min(plan.splits_per_tile - 1, 5))
    k = steps * plan.cta_tile_k - plan.cta_tile_k // 3
    yield replace(ring, shape=(rows, plan.program_tile_n + 9, k), programs=2, wraps=False)
    if (
        prod(order.shape) <= MOST_PRODUCTS
        and prod(plan.tiles(order.shape)) * plan.splits_per_tile <= MOST_TILES
    ):
        yield order


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_a_random_spec_for_few_rows_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    texts = map(few_rows.spec_text, range(first_seed, first_seed + 50))
    assert_neither_tame_nor_wild(texts, HOPPER, tmp_path, out_of_reach=(STREAM_K_RULE,))


@pytest.mark.parametrize("index", range(FEW_ROWS_LOWERED))
def test_an_accepted_spec_for_few_rows_compiles_as_planned_and_is_clean(index: int, tmp_path: Path) -> None:
    source, plan = accepted(index, few_rows.spec_text, HOPPER, BORDER, tmp_path)
    product = assert_compiled_as_planned(source, plan)
    assert_clean(product.module)
    assert simulate_product(product, tuple(launches(plan))).problems == ()


# --- composed tiles


@pytest.mark.parametrize("first_seed", range(0, 300, 100))
def test_a_random_spec_of_composed_tiles_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    texts = map(composed.spec_text, range(first_seed, first_seed + 100))
    assert_neither_tame_nor_wild(texts, HOPPER, tmp_path, out_of_reach=(*FEW_ROWS_RULES, STREAM_K_RULE))


@pytest.mark.parametrize("index", range(COMPOSED_LOWERED))
def test_an_accepted_spec_of_composed_tiles_compiles_as_planned_and_is_clean(
    index: int, tmp_path: Path
) -> None:
    source, plan = accepted(index, composed.spec_text, HOPPER, BORDER, tmp_path)
    product = assert_compiled_as_planned(source, plan)
    assert_clean(product.module)
    assert simulate_product(product, tuple(launches(plan))).problems == ()


# --- stream-K

MOST_TILE = 1 << 14
"""Elements of a program's tile of which eight are simulated, in a hundred steps of K."""


@pytest.mark.parametrize("first_seed", range(0, 200, 100))
def test_a_random_spec_of_a_divided_wave_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    texts = map(stream_k.spec_text, range(first_seed, first_seed + 100))
    assert_neither_tame_nor_wild(
        texts, HOPPER, tmp_path, out_of_reach=("dependent-launch", "composed-tile", "same-bits")
    )


@pytest.mark.parametrize("index", range(STREAM_K_LOWERED))
def test_an_accepted_spec_of_a_divided_wave_compiles_as_planned_and_is_clean(
    index: int, tmp_path: Path
) -> None:
    source, plan = accepted(index, stream_k.spec_text, HOPPER, BORDER, tmp_path)
    product = assert_compiled_as_planned(source, plan)
    assert_clean(product.module)
    parts = parts_launch(plan, ("random",))
    shared = (parts,) if plan.program_tile_m * plan.program_tile_n <= MOST_TILE else ()
    assert simulate_product(product, (*launches(plan), *shared)).problems == ()
