"""The launches of a simulation: shapes small enough to be fast, large enough to wrap every ring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from typing import Literal

from gemmgen.plan import Plan
from gemmgen.verify.verification import Shape, shape_text

FIXED_SCHEDULES = ("lazy", "eager", "lifo")
"""The policies that have no seed."""
QUICK_SCHEDULES = ("lazy", "eager", "random")
"""What a build has time for."""
MAX_PRODUCTS = 4096**3
"""Of a problem: a schedule takes three seconds for 2048**3, and there are fourteen."""
MAX_ELEMENTS = 1 << 28
"""Of one matrix, which the reference holds in float64."""


@dataclass(frozen=True)
class Launch:
    """One problem, the grid it runs on, and the schedules under which it is run."""

    shape: Shape
    programs: int
    inputs: Literal["integers", "normal"]
    """Small integers, whose products compare bit for bit; or N(0, 1), within verify's tolerance."""
    schedules: tuple[str, ...]
    wraps: bool = False
    """Whether every ring must come round in it."""

    def __str__(self) -> str:
        programs = counted(self.programs, "program")
        under = counted(len(self.schedules), "schedule")
        return f"{shape_text(self.shape)}, {self.inputs}, {programs}, {under}"


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 schedule``, ``2 schedules``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def all_launches(plan: Plan, seeds: int) -> tuple[Launch, ...]:
    """Return what a whole simulation runs, with `seeds` random schedules."""
    return (ring_launch(plan, schedules(seeds)), order_launch(plan))


def schedules(seeds: int) -> tuple[str, ...]:
    """Return every policy, the random one as many times as there are seeds."""
    return (*FIXED_SCHEDULES, *("random" for _ in range(seeds)))


def ring_launch(plan: Plan, schedules: tuple[str, ...] = QUICK_SCHEDULES) -> Launch:
    """Return the smallest launch in which every ring comes round twice and goes on, with ragged edges.

    One program computes every tile: two laps of the stages and two steps more in each, two laps of the
    epilogue's buffers and a tile more in all.
    """
    tiles_n = max(2, ceil((2 * plan.epilogue_buffers + 1) / 2))
    k_steps = 2 * plan.stages + 2
    return Launch(_ragged(plan, 2, tiles_n, k_steps), 1, "integers", schedules, wraps=True)


def order_launch(plan: Plan) -> Launch:
    """Return a launch of two programs with more rows of tiles than a group has, and a single step of K."""
    return Launch(_ragged(plan, plan.width + 1, 3, 1), 2, "normal", ("random",))


def pinned_launches(shape: Shape, seeds: int) -> tuple[Launch, ...]:
    """Return launches of a given shape, with integers under every schedule and with normal inputs."""
    return (Launch(shape, 1, "integers", schedules(seeds)), Launch(shape, 2, "normal", ("random",)))


def parse_shape(text: str) -> Shape:
    """Return the shape [M, N, K] that ``MxNxK`` spells.

    Raises:
        ValueError: It spells none, or one that would take hours.
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


def _ragged(plan: Plan, tiles_m: int, tiles_n: int, k_steps: int) -> Shape:
    """Return the shape of so many tiles and steps, the last of each filled in part only."""
    return (
        tiles_m * plan.program_tile_m - plan.program_tile_m // 3,
        tiles_n * plan.program_tile_n - plan.program_tile_n // 3,
        k_steps * plan.cta_tile_k - plan.cta_tile_k // 3,
    )
