"""Stream-K: which pieces of tiles programs compute, that each K step is in one, and who adds them up."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hopper import hopper
from modules import made, module_file, spec_file

from gemmgen.module import import_generated
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Shape
from gemmgen.verify.launches import Launch, parts_launch
from gemmgen.verify.simulation import simulate_product

STEMS = ("h100_bf16_stream_k", "h100_bf16_stream_k_gelu")
DIVIDING = ("Steps", "Division", "divide", "Piece", "Tiles", "pieces_of_tile")
"""What of a module says which pieces there are, in its order."""
LEAST_STEPS, LEAST_SAVED = 8, 40


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
        self._names: dict[str, Any] = {"gl": gl, "gluon": gluon, "Args": object, "__name__": __name__}
        self._names |= {"MIN_SHARE_STEPS": LEAST_STEPS, "MIN_SAVED_STEPS": LEAST_SAVED}
        exec(compile(ast.Module(list(nodes), []), stem, "exec"), self._names)

    def call(self, name: str, *arguments: object) -> Any:
        """What one of the functions returns."""
        function: Callable[..., Any] = self._names[name]
        return function(*arguments)

    def on(self, programs: int) -> Dividing:
        """The same in a launch of so many programs."""
        self._at.programs = programs
        return self

    def pieces(self, tiles: int, k_steps: int, programs: int) -> list[Found]:
        """The pieces of all programs, program by program, as each of their roles derives them."""
        args = SimpleNamespace(tiles_m=tiles, tiles_n=1, k_steps=k_steps)
        found: list[Found] = []
        self._at.programs = programs
        for program in range(programs):
            self._at.program = program
            tiles_of_program = self.call("Tiles", self.call("divide", args))
            bounds = (tiles_of_program.first(), tiles_of_program.end(), tiles_of_program.stride())
            for number in range(*bounds):
                piece = tiles_of_program.piece(number)
                steps = range(tiles_of_program.steps(piece).first, tiles_of_program.steps(piece).end)
                assert len(steps) == tiles_of_program.steps(piece).count()
                divided = tiles_of_program.divided_index(piece)
                place = program + (0 if tiles_of_program.division.has_chunk() else divided)
                place = place if len(steps) < k_steps else None
                found.append(Found(program, piece.tile, steps, place))
        return found

    def added_up(self, tiles: int, k_steps: int, programs: int, tile: int) -> list[int]:
        """The places whose sums are added up of a divided tile, in their order, as `sum_of_pieces` has it."""
        args = SimpleNamespace(tiles_m=tiles, tiles_n=1, k_steps=k_steps)
        self._at.programs = programs
        division = self.call("divide", args)
        divided = tile - division.waves * programs
        pieces, behind = self.call("pieces_of_tile", division, divided)
        chunks = [i * division.tiles + divided for i in range(division.chunks)]
        return chunks + [behind + i for i in range(pieces - division.chunks)]


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
def test_what_is_added_up_of_a_tile_are_its_pieces_in_the_order_of_k(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        found = defaultdict[int, list[Found]](list)
        for piece in dividing(stem).pieces(tiles, k_steps, programs):
            if piece.place is not None:
                found[piece.tile].append(piece)
        for tile, pieces in found.items():
            in_order = sorted(pieces, key=lambda piece: piece.steps.start)
            places = [piece.place for piece in in_order]
            assert places == dividing(stem).added_up(tiles, k_steps, programs, tile)
            assert len(places) > 1


@pytest.mark.parametrize("stem", STEMS)
def test_a_tile_that_one_program_has_whole_is_not_counted(stem: str) -> None:
    whole = 0
    for tiles, k_steps, programs in PROBLEMS:
        for piece in dividing(stem).pieces(tiles, k_steps, programs):
            if piece.place is None and piece.tile >= tiles // programs * programs:
                places = dividing(stem).added_up(tiles, k_steps, programs, piece.tile)
                assert len(places) == 1
                whole += 1
    assert whole > 100


@pytest.mark.parametrize("stem", STEMS)
def test_every_piece_has_a_place_of_its_own_in_the_workspace(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        pieces = dividing(stem).pieces(tiles, k_steps, programs)
        places = [piece.place for piece in pieces if piece.place is not None]
        assert len(set(places)) == len(places)
        assert all(place < programs + min(tiles, programs) for place in places)


@pytest.mark.parametrize("stem", STEMS)
def test_no_program_has_many_more_steps_or_pieces_than_it_needs(stem: str) -> None:
    for tiles, k_steps, programs in PROBLEMS:
        pieces = dividing(stem).pieces(tiles, k_steps, programs)
        divided = [piece for piece in pieces if piece.tile >= tiles // programs * programs]
        least = max(-(-(tiles % programs) * k_steps // programs), min(LEAST_STEPS, k_steps))
        for program in range(programs):
            own = [piece for piece in divided if piece.program == program]
            assert len(own) <= 3
            # Where what is behind the chunks is short, or saves little, they are longer.
            assert sum(len(piece.steps) for piece in own) <= max(-(-3 * least // 2), least + LEAST_SAVED)


def test_the_plan_has_the_chunks_of_the_module() -> None:
    plan = plan_of(STEMS[0])
    assert (plan.least_steps, plan.least_saved_steps) == (LEAST_STEPS, LEAST_SAVED)
    for tiles, k_steps, programs in PROBLEMS:
        args = SimpleNamespace(tiles_m=tiles, tiles_n=1, k_steps=k_steps)
        division = dividing(STEMS[0]).on(programs).call("divide", args)
        if tiles % programs:
            assert plan.chunks(tiles, k_steps, programs) == (division.chunks, division.share_steps)
        else:
            assert plan.chunks(tiles, k_steps, programs) == (1, k_steps)


def test_72_tiles_keep_all_132_programs_at_work() -> None:
    pieces = dividing(STEMS[0]).pieces(72, 128, 132)
    steps = [sum(len(piece.steps) for piece in pieces if piece.program == i) for i in range(132)]
    assert steps[:131] == [70] * 131  # of 72 x 128 / 132 = 69.8
    assert steps[131] == 72 * 128 - 131 * 70
    chunks = [piece.steps for piece in pieces if piece.program < 72]
    assert chunks == [range(70)] * 72  # which all begin at the same K
    # Of half the steps it would save 29, which is less than two or three pieces for the others take.
    assert all(len(piece.steps) == 64 for piece in dividing(STEMS[0]).pieces(72, 64, 132))


def test_few_tiles_are_divided_into_chunks_alone() -> None:
    pieces = dividing(STEMS[0]).pieces(132 + 12, 64, 132)
    assert sorted(piece.steps.start for piece in pieces if piece.tile == 140) == list(range(0, 64, 8))
    assert {piece.program for piece in pieces if piece.tile > 131} == set(range(8 * 12))


def test_a_last_wave_that_is_nearly_full_is_not_divided() -> None:
    pieces = dividing(STEMS[0]).pieces(132 + 120, 64, 132)
    assert all(len(piece.steps) == 64 for piece in pieces)


# --- numbers, in the simulator


LAUNCHES = [
    ((384, 100, 6400), 5),  # three tiles of 100 steps, of which one has pieces of three programs
    ((128, 256, 1280), 5),  # two tiles of 20 steps, each in two chunks
    ((128, 128, 1100), 40),  # more programs than have eight steps
    ((300, 256, 700), 4),  # a wave and a half
    ((256, 256, 192), 2),  # whole waves: nothing is divided
    ((560, 256, 1100), 7),  # a wave, and chunks of three tiles
    ((64, 48, 64), 7),  # one step in all
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("shape", "programs"), LAUNCHES)
def test_divided_tiles_are_right_whatever_the_order_of_events(shape: Shape, programs: int) -> None:
    schedules = ("lazy", "eager", "lifo", "random", "random")
    launches = [Launch(shape, programs, inputs, schedules) for inputs in ("integers", "normal")]
    simulation = simulate_product(made(spec_file(STEMS[1])), launches)
    assert simulation.problems == ()


def test_the_launch_of_parts_has_whole_tiles_chunks_and_what_is_behind() -> None:
    product = made(spec_file(STEMS[0]))
    launch = parts_launch(product.plan)
    tiles_m, tiles_n = product.plan.tiles(launch.shape)
    k_steps = -(-launch.shape[2] // product.plan.cta_tile_k)
    pieces = dividing(STEMS[0]).pieces(tiles_m * tiles_n, k_steps, launch.programs)
    found = [(piece.program, piece.tile, piece.steps) for piece in pieces]
    whole, chunk = range(100), range(60)
    assert found[:6] == [
        (0, 0, whole),
        (0, 5, chunk),
        (1, 1, whole),
        (1, 6, chunk),
        (2, 2, whole),
        (2, 7, chunk),
    ]
    assert found[6:9] == [(3, 3, whole), (3, 5, range(60, 100)), (3, 6, range(60, 80))]
    assert found[9:] == [(4, 4, whole), (4, 6, range(80, 100)), (4, 7, range(60, 100))]


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
    programs, sums = int(module.MAX_PROGRAMS.value), int(module.SUMS.value)
    assert programs == plan.gpu.sm_count
    for tiles in (1, 72, 131, 132, 263, 264, 265, 1000):
        partials, counters = module.make_workspace(tiles * plan.cta_tile_m, 1, torch.device("meta"))
        divided = min(tiles, programs)
        assert counters.numel() == divided * plan.consumers
        assert partials.numel() == (programs + divided) * plan.consumers * sums
        assert partials.numel() * 4 <= plan.most_partial_bytes


def test_a_workspace_is_no_larger_than_the_ledger_says() -> None:
    plan = plan_of(STEMS[0])
    (entry,) = (entry for entry in plan.summary if entry.name == "stream-K")
    assert f"{plan.most_partial_bytes:,} bytes" in entry.derivation
    assert plan.most_partial_bytes == 2 * 132 * 128 * 256 * 4


def test_plans_that_divide_the_last_wave_are_deterministic_and_restore_their_counters() -> None:
    plan = plan_of(STEMS[0])
    assert plan.deterministic
    assert plan.restored == ("counters",)
    assert replace(plan, last_wave="whole").restored == ()
