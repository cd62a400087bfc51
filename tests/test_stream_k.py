"""Stream-K: which pieces of tiles programs compute, that each K step is in one, and who adds them up."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hopper import hopper
from modules import made, module_file, spec_file

from gemmgen.module import import_generated
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Shape
from gemmgen.verify.simulation import PARTS_PROGRAMS, Launch, parts_launch, simulate_product

STEMS = ("h100_bf16_stream_k", "h100_bf16_stream_k_bias")
DIVIDING = ("Division", "divide", "share_of_program", "count_pieces", "Piece", "find_piece", "owners")
"""What of a module says which pieces there are, in its order."""
LEAST_STEPS = 8


@dataclass(frozen=True)
class Found:
    """A piece, and its place among those of divided tiles."""

    program: int
    tile: int
    steps: range
    place: int | None
    """None of a tile that one program has whole."""


class Dividing:
    """The functions of a module that divide tiles, run by Python: what they do to numbers is alike there."""

    def __init__(self, stem: str) -> None:
        tree = ast.parse(module_file(stem).read_text())
        nodes = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in DIVIDING
        ]
        assert tuple(node.name for node in nodes) == DIVIDING
        self._at = SimpleNamespace(program=0, programs=1)
        gl = SimpleNamespace(
            tensor=int,
            where=lambda condition, yes, no: yes if condition else no,  # pyright: ignore[reportUnknownLambdaType]
            cdiv=lambda a, b: -(-a // b),  # pyright: ignore[reportUnknownLambdaType]
            maximum=max,
            minimum=min,
            program_id=lambda _: self._at.program,  # pyright: ignore[reportUnknownLambdaType]
            num_programs=lambda _: self._at.programs,  # pyright: ignore[reportUnknownLambdaType]
        )
        gluon = SimpleNamespace(jit=lambda function: function, aggregate=dataclass)  # pyright: ignore[reportUnknownLambdaType]
        self._names: dict[str, Any] = {"gl": gl, "gluon": gluon, "LEAST_STEPS": LEAST_STEPS, "__name__": stem}
        exec(compile(ast.Module(list(nodes), []), stem, "exec"), self._names)

    def call(self, name: str, *arguments: object) -> Any:
        """What one of the functions returns."""
        function: Callable[..., Any] = self._names[name]
        return function(*arguments)

    def pieces(self, tiles: int, k_steps: int, programs: int) -> list[Found]:
        """The pieces of all programs, program by program, as each of their roles derives them."""
        args = SimpleNamespace(tiles_m=tiles, tiles_n=1, k_steps=k_steps)
        found: list[Found] = []
        self._at.programs = programs
        for program in range(programs):
            self._at.program = program
            division = self.call("divide", args)
            for number in range(self.call("count_pieces", args, division)):
                piece = self.call("find_piece", args, division, number)
                steps = range(piece.first_step, piece.end)
                divided = piece.tile - division.waves * programs
                place = program + divided if len(steps) < k_steps else None
                found.append(Found(program, piece.tile, steps, place))
        return found

    def owners(self, tiles: int, k_steps: int, programs: int, tile: int) -> tuple[int, int]:
        """The first and the last program of a divided tile."""
        args = SimpleNamespace(tiles_m=tiles, tiles_n=1, k_steps=k_steps)
        self._at.programs = programs
        division = self.call("divide", args)
        return self.call("owners", args, division, tile - division.waves * programs)


@cache
def dividing(stem: str) -> Dividing:
    """The functions of a module, once."""
    return Dividing(stem)


PROBLEMS = [
    (tiles, k_steps, programs)
    for programs in (1, 2, 3, 5, 13, 132)
    for k_steps in (1, 2, 7, 8, 9, 64, 257)
    for tiles in sorted(
        {1, 2, 3, programs // 2 or 1, programs - 1 or 1, programs, programs + 1, 2 * programs - 1}
    )
] + [(72, 64, 132), (144, 64, 132), (265, 112, 132), (1000, 3, 132), (56, 256, 114)]


@pytest.mark.parametrize("stem", STEMS)
def test_every_k_step_of_every_tile_is_in_one_piece(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        steps = defaultdict[int, list[int]](list)
        for piece in dividing(stem).pieces(tiles, k_steps, programs):
            assert len(piece.steps) > 0
            steps[piece.tile] += piece.steps
        assert sorted(steps) == list(range(tiles))
        assert all(sorted(found) == list(range(k_steps)) for found in steps.values())


@pytest.mark.parametrize("stem", STEMS)
def test_a_tile_is_counted_by_as_many_programs_as_have_pieces_of_it(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        counts = defaultdict[int, list[int]](list)
        for piece in dividing(stem).pieces(tiles, k_steps, programs):
            if piece.place is not None:
                counts[piece.tile].append(piece.program)
        for tile, found in counts.items():
            first, last = dividing(stem).owners(tiles, k_steps, programs, tile)
            assert found == list(range(first, last + 1))
            assert len(found) > 1


@pytest.mark.parametrize("stem", STEMS)
def test_pieces_have_places_of_their_own_and_those_of_a_tile_follow_one_another(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        pieces = [
            piece for piece in dividing(stem).pieces(tiles, k_steps, programs) if piece.place is not None
        ]
        places = [piece.place for piece in pieces if piece.place is not None]
        assert len(set(places)) == len(places)
        assert all(place < programs + min(tiles, 2 * programs) for place in places)
        for one, other in pairwise(sorted(pieces, key=lambda piece: (piece.tile, piece.steps.start))):
            if one.tile == other.tile:
                assert (one.place, one.steps.stop) == ((other.place or 0) - 1, other.steps.start)


@pytest.mark.parametrize("stem", STEMS)
def test_programs_have_as_many_steps_as_each_other(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        steps = [0] * programs
        for piece in dividing(stem).pieces(tiles, k_steps, programs):
            steps[piece.program] += len(piece.steps)
        least = -(-tiles * k_steps // programs)
        assert max(steps) <= max(least + k_steps * (tiles % programs == 0), min(LEAST_STEPS, k_steps))
        if tiles > programs:
            pieces = dividing(stem).pieces(tiles, k_steps, programs)
            per_tile = [sum(piece.tile == tile for piece in pieces) for tile in range(tiles)]
            assert max(per_tile) <= 2  # for a share is no less than a tile


def test_72_tiles_keep_all_132_programs_at_work() -> None:
    pieces = dividing(STEMS[0]).pieces(72, 64, 132)
    steps = [sum(len(piece.steps) for piece in pieces if piece.program == i) for i in range(132)]
    assert steps.count(35) == 131  # of 64 x 72 / 132 = 34.9
    assert steps[131] == 72 * 64 - 131 * 35


# --- numbers, in the simulator


LAUNCHES = [
    ((128, 256, 1280), 5),  # a tile or two of 20 steps: three programs share each
    ((128, 128, 1100), 40),  # more programs than have eight steps
    ((300, 256, 192), 4),  # a wave and a half
    ((256, 256, 192), 2),  # whole waves: nothing is divided
    ((560, 256, 150), 3),  # several waves, and a rest
    ((64, 48, 64), 7),  # one step in all
]


@pytest.mark.parametrize(("shape", "programs"), LAUNCHES)
def test_divided_tiles_are_right_whatever_the_order_of_events(shape: Shape, programs: int) -> None:
    schedules = ("lazy", "eager", "lifo", "random", "random")
    launches = [Launch(shape, programs, inputs, schedules) for inputs in ("integers", "normal")]
    simulation = simulate_product(made(spec_file(STEMS[1])), launches)
    assert simulation.problems == ()


def test_the_launch_of_parts_has_whole_tiles_and_pieces_of_two_programs() -> None:
    product = made(spec_file(STEMS[0]))
    launch = parts_launch(product.plan)
    tiles_m, tiles_n = product.plan.tiles(launch.shape)
    k_steps = -(-launch.shape[2] // product.plan.cta_tile_k)
    pieces = dividing(STEMS[0]).pieces(tiles_m * tiles_n, k_steps, PARTS_PROGRAMS)
    found = [(piece.program, piece.tile, len(piece.steps)) for piece in pieces]
    assert found == [(0, 0, 3), (0, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 1), (2, 3, 3)]


# --- the workspace


def imported(stem: str) -> ModuleType:
    """A committed module."""
    return import_generated(module_file(stem))


def plan_of(stem: str) -> WgmmaKernel:
    """The plan of a committed spec."""
    return hopper(made(spec_file(stem)).plan)


@pytest.mark.parametrize("stem", STEMS)
def test_a_workspace_has_a_place_for_each_piece_and_a_counter_for_each_divided_tile(stem: str) -> None:
    module, plan = imported(stem), plan_of(stem)
    programs, sums = int(module.PROGRAMS.value), int(module.SUMS.value)
    assert programs == plan.problem.gpu.sm_count
    for tiles in (1, 72, 131, 132, 263, 264, 265, 1000):
        partials, counters = module.make_workspace(tiles * plan.cta_tile_m, 1, torch.device("meta"))
        divided = min(tiles, 2 * programs)
        assert counters.numel() == divided * plan.consumers
        assert partials.numel() == (programs + divided) * plan.consumers * sums
        assert partials.numel() * 4 <= plan.most_partial_bytes


def test_a_workspace_is_no_larger_than_the_ledger_says() -> None:
    plan = plan_of(STEMS[0])
    (entry,) = (entry for entry in plan.summary if entry.name == "stream-K")
    assert f"{plan.most_partial_bytes:,} bytes" in entry.derivation
    assert plan.most_partial_bytes == 3 * 132 * 128 * 256 * 4


def test_plans_that_divide_the_last_wave_are_deterministic_and_restore_their_counters() -> None:
    plan = plan_of(STEMS[0])
    assert plan.deterministic
    assert plan.restored == ("counters",)
    assert replace(plan, last_wave="whole").restored == ()
