"""The launches that a simulation runs: problem, grid and schedules.

Shapes are small enough to be fast, and large enough to wrap every ring.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import Matmul, Shape, shape_text
from gluonsim.policies import schedules
from gluonsim.result import counted

QUICK_SCHEDULES = ("lazy", "eager", "random")
"""Schedules of a quick simulation, for a build."""
ONE_TILE_KINDS = ("single_tile", "tiled")
"""Schedules in which a program computes one tile."""
ROW_TILES = 5
"""Tiles along M if tiles are walked row by row: no power of two, and more than four."""
LARGEST_SQUARE = 8
"""Tiles along a side of the largest square of a Hilbert curve that is run whole."""
MAX_PRODUCTS = 4096**3
"""Greatest M * N * K: a schedule takes three seconds for 2048**3, and there are fourteen."""
FEW_GROUPS = 8
"""Most groups of a launch that needs no more: the steps of 128 groups would take up to a minute."""
MAX_ELEMENTS = 1 << 28
"""Greatest number of elements of a matrix, which the reference holds in float64."""


@dataclass(frozen=True)
class Launch:
    """One problem, the grid it runs on, and the schedules under which it is run."""

    shape: Shape
    programs: int
    inputs: Literal["integers", "normal", "hostile"]
    """Small integers, whose products compare bit for bit; or N(0, 1), within verify's tolerance. Hostile ones
    are small integers too, and the tensors that divide rows, and indices of rows, hold numbers out of bounds.
    """
    schedules: tuple[str, ...]
    wraps: bool = False
    """True if every ring must wrap in it."""
    one_tile: bool = False
    """True if each program computes only one tile."""
    most_groups: int | None = None
    """Most groups of the problem; None if it has as many as its spec says. A kernel takes any number."""

    def problem_of(self, problem: Matmul) -> Matmul:
        """Return the problem of a spec with no more groups than the launch has."""
        groups = problem.groups
        if groups is None or self.most_groups is None:
            return problem
        return replace(problem, groups=replace(groups, count=min(groups.count, self.most_groups)))

    def __str__(self) -> str:
        programs = counted(self.programs, "program")
        under = counted(len(self.schedules), "schedule")
        return f"{shape_text(self.shape)}, {self.inputs}, {programs}, {under}"

    def on(self, plan: Kernel, module: str) -> Launch:
        """Return the launch with the grid that the plan's kernel needs; ``module`` is for messages.

        Raises:
            GemmgenError: The kernel is of one tile, and the shape is larger (``shape-too-large``).
        """
        tile = (plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k)
        too_large = any(extent > most for extent, most in zip(self.shape, tile, strict=True))
        if plan.schedule_kind == "single_tile" and too_large:
            message = f"{shape_text(self.shape)} is more than the one tile of {shape_text(tile)}"
            raise GemmgenError([Diagnostic(module, "shape-too-large", message)])
        request = replace(plan.request, matmul=self.problem_of(plan.problem))
        programs = programs_of(replace(plan, request=request), self.shape, self.programs)
        return replace(self, programs=programs, one_tile=plan.schedule_kind in ONE_TILE_KINDS)


def programs_of(plan: Kernel, shape: Shape, resident: int) -> int:
    """Return the programs of a launch: the resident ones, one for a single tile, or one for each tile."""
    tiles_m, tiles_n = plan.tiles(shape)
    if plan.persistent:
        return resident
    return 1 if plan.schedule_kind == "single_tile" else tiles_m * tiles_n * plan.splits_per_tile


def all_launches(plan: Kernel, seeds: int) -> tuple[Launch, ...]:
    """Return the launches of a whole simulation, with `seeds` random schedules."""
    parts = (parts_launch(plan, schedules(seeds)),) if takes_parts(plan) else ()
    hostile = (hostile_launch(plan),) if obeys_tensors(plan) else ()
    return (ring_launch(plan, schedules(seeds)), order_launch(plan), *parts, *hostile)


def takes_parts(plan: Kernel) -> bool:
    """Return True if a program computes parts of several tiles, which it shares with others."""
    return plan.persistent and plan.splits_per_tile > 1


def obeys_tensors(plan: Kernel) -> bool:
    """Return True if numbers in memory of the GPU say which rows a kernel reads or writes."""
    groups = plan.problem.groups
    return groups is not None and bool(groups.counts or groups.row_indices)


def ring_launch(plan: Kernel, schedules: tuple[str, ...] = QUICK_SCHEDULES) -> Launch:
    """Return the smallest launch with ragged edges in which every ring wraps twice.

    One program computes every tile, or, with launch control, as many as it can take over. Each tile has two
    laps of the stages and two steps more; all tiles together have two laps of the rings of tiles and a tile
    more, with ping-pong for each consumer. If a program has one tile, the stages wrap three times in it, and
    the epilogue runs once; a kernel of a single tile has one step, and no ring. If K is divided, there is one
    row of tiles, each with many parts. There are at most `FEW_GROUPS` groups.
    """
    if plan.schedule_kind == "single_tile":
        return Launch(ragged(plan, 1, 1, 1), 1, "integers", schedules)
    tiles_m = 1 if plan.splits_per_tile > 1 else 2
    if plan.schedule_kind == "tiled":
        k_steps = plan.splits_per_tile * (3 * plan.stages + 2)
        shape = ragged(plan, tiles_m, _least_tiles_n(plan), k_steps)
        return Launch(shape, 4, "integers", schedules, wraps=True, most_groups=FEW_GROUPS)
    tiles_n = max(_least_tiles_n(plan), ceil(plan.tiles_to_wrap / tiles_m))
    shape = ragged(plan, tiles_m, tiles_n, 2 * plan.stages + 2)
    return Launch(shape, 1, "integers", schedules, wraps=True, most_groups=FEW_GROUPS)


def _least_tiles_n(plan: Kernel) -> int:
    """Return the tiles along N of a launch at least: two, or as many as have two scales of columns of B."""
    scale = plan.problem.b.scale
    if scale is None or scale.format.rows == 1:
        return 2
    return max(2, scale.format.rows // plan.program_tile_n + 1)


PARTS_PROGRAMS = 3
"""Number of programs that share the parts of tiles, if programs compute several."""


def parts_launch(plan: Kernel, schedules: tuple[str, ...] = QUICK_SCHEDULES) -> Launch:
    """Return a launch in which different programs compute the parts of a tile, of one step of K each.

    In the ring launch one program computes all parts, so the last part always stores the tile.
    """
    tiles_m = 1 if plan.splits_per_tile > 2 * PARTS_PROGRAMS else 2  # each program takes several parts
    return Launch(ragged(plan, tiles_m, 2, plan.splits_per_tile), PARTS_PROGRAMS, "normal", schedules)


def order_launch(plan: Kernel) -> Launch:
    """Return a launch of two programs with more tiles along the minor dimension than a group has.

    A Hilbert curve has a whole square in it, and parts of others at two edges. There is a single step of K. A
    kernel of a single tile computes all of it. There are all groups of the spec if warps search them for the
    group of a tile, and few if a tile's number tells its group.
    """
    if plan.schedule_kind == "single_tile":
        tile = (plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k)
        return Launch(tile, 1, "normal", ("random",))
    if plan.order == "hilbert" and plan.width <= LARGEST_SQUARE:
        tiles_m = tiles_n = plan.width + 1  # a whole square, and parts of others
    else:
        along = plan.width + 1 if plan.order in ("grouped", "snake") else ROW_TILES
        tiles_m, tiles_n = (3, along) if plan.minor == "n" else (along, 3)
    groups = None if plan.group_slots else FEW_GROUPS
    return Launch(ragged(plan, tiles_m, tiles_n, 1), 2, "normal", ("random",), most_groups=groups)


def hostile_launch(plan: Kernel) -> Launch:
    """Return a small launch of two programs whose tensors hold numbers of rows out of bounds.

    No row outside of A and D is read or written, whatever they hold. There is a single step of K, or, where
    groups divide K, a step for each group. Groups that divide M have four rows of tiles, so that ends can
    fall by more than a tile.
    """
    groups = plan.problem.groups
    k_steps = min(groups.count, FEW_GROUPS) if groups and groups.divides_k else 1
    tiles_m = 2 if groups and (groups.apart or groups.divides_k) else 4
    shape = ragged(plan, tiles_m, _least_tiles_n(plan), k_steps)
    return Launch(shape, 2, "hostile", ("random",), most_groups=FEW_GROUPS)


def pinned_launches(shape: Shape, seeds: int, programs: int | None = None) -> tuple[Launch, ...]:
    """Return launches of a given shape: integers under every schedule, and normal inputs.

    A persistent kernel runs with `programs` programs, by default with one and with two. For other kernels
    `Launch.on` decides their number.
    """
    return (
        Launch(shape, programs or 1, "integers", schedules(seeds)),
        Launch(shape, programs or 2, "normal", ("random",)),
    )


def parse_shape(text: str) -> Shape:
    """Return the shape [M, N, K] that ``MxNxK`` spells.

    Raises:
        ValueError: The text spells no shape, or one that would take hours.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", text)
    if match is None:
        raise ValueError(f"`{text}` is no shape: write MxNxK")
    m, n, k = map(int, match.groups())
    if m * n * k > MAX_PRODUCTS:
        raise ValueError(f"`{text}` would take hours on a CPU: M * N * K can be at most {MAX_PRODUCTS:,}")
    if max(m * n, m * k, n * k) > MAX_ELEMENTS:
        raise ValueError(f"`{text}` has a matrix of more than {MAX_ELEMENTS:,} elements")
    return m, n, k


def ragged(plan: Kernel, tiles_m: int, tiles_n: int, k_steps: int) -> Shape:
    """Return the shape of these numbers of tiles and steps; the last of each is partial if it can be."""
    step, multiple = plan.cta_tile_k, plan.access.k_multiple
    wanted = k_steps * step - step // 3
    k = wanted // multiple * multiple
    if k <= (k_steps - 1) * step:  # the operands cannot have a part of the last step
        k = k_steps * step
    n = tiles_n * plan.program_tile_n - plan.program_tile_n // 3
    of_n = plan.access.n_multiple
    n = n // of_n * of_n
    if n <= (tiles_n - 1) * plan.program_tile_n:  # D cannot have a part of the last tile's columns
        n = -(-tiles_n * plan.program_tile_n // of_n) * of_n
    return tiles_m * plan.program_tile_m - plan.program_tile_m // 3, n, k
