"""Walks as a table: which template says what work items a program has, and how the roles use it.

A walk over numbers of tiles is a plain loop in each role. Any other walk is the aggregate `Tiles`, and its
template alone knows how tiles are found. A row says which kernels have the walk, and which words the
templates of the roles write to use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gemmgen.plan.kernel import Kernel


@dataclass(frozen=True)
class Walk:
    """A row of `WALKS`."""

    template: str | None
    """The template that defines `Tiles`, without its ending; None of a loop over numbers of tiles."""
    holds: Callable[[Kernel], bool]
    """Return whether a kernel has this walk, unless a later row holds too."""
    walked: str = "tiles of D"
    """The work items in words, for a module's docstring; ``{splits}`` stands for the splits of a tile."""
    tiles: str = "Tiles(args)"
    """The expression that makes `Tiles` in a role, if a template defines it."""
    place: str = "tiles.at()"
    """The expression of the tile of a program that has one work item."""
    end: str = "tiles.end()"
    """The expression of the number of work items of all programs."""
    has_tiles_side_by_side: bool = False
    """True if neighbouring programs have neighbouring tiles of one split, and not the splits of one tile."""
    item: str = "item"
    """The variable that holds a work item: `Tiles.at` takes it."""
    steps: str | None = None
    """The expression of the K steps of a work item; None if each has all K steps of a tile."""
    first_steps: str | None = None
    """The expression of the K steps of a program's first work item; None if `steps` is."""
    k: str = "k_step * PROGRAM_TILE_K"
    """The expression of the place of a K step along K: `load_stage` takes it."""

    @property
    def first(self) -> str:
        """The expression of the first work item of a program."""
        return "tiles.first()" if self.template else "gl.program_id(0)"

    @property
    def stride(self) -> str:
        """The expression of the distance from a work item of a program to its next one."""
        return "tiles.stride()" if self.template else "gl.num_programs(0)"

    def at(self, item: str) -> str:
        """Return the expression of the tile of a work item."""
        return f"tiles.at({item})" if self.template else f"tile_origin(args, {item})"

    @property
    def has_pieces(self) -> bool:
        """True if a loop's variable is not yet the work item: `Tiles.piece` finds it, with a K of its own.

        A ping-pong consumer then passes the K steps of the other consumer's work item first.
        """
        return self.item == "piece"


def _has_one_tile(plan: Kernel) -> bool:
    return plan.schedule_kind == "single_tile"


def _is_tiled(plan: Kernel) -> bool:
    return plan.schedule_kind == "tiled"


def _splits_k(plan: Kernel) -> bool:
    return plan.splits_per_tile > 1


WALKS: Final[dict[str, Walk]] = {
    "no_walk": Walk(None, _has_one_tile, place="Tile(gl.to_tensor(0), gl.to_tensor(0))"),
    "one_tile": Walk(None, _is_tiled, place="tile_origin(args, gl.program_id(0))"),
    "one_split": Walk(
        "walks/one_split",
        lambda plan: _is_tiled(plan) and _splits_k(plan),
        tiles="Tiles(args, gl.program_id(0) // SPLITS, gl.program_id(0) % SPLITS)",
        steps="tiles.steps()",
    ),
    "one_part": Walk(
        "walks/one_split",
        lambda plan: _is_tiled(plan) and plan.reduces_apart,
        tiles="Tiles(args, gl.program_id(0) % count, gl.program_id(0) // count)",
        has_tiles_side_by_side=True,
        steps="tiles.steps()",
    ),
    "static": Walk(None, lambda plan: plan.persistent, end="args.tiles_m * args.tiles_n"),
    "static_split": Walk(
        "walks/static_split",
        lambda plan: plan.persistent and _splits_k(plan),
        walked="parts of tiles of D, whose K is divided by {splits}",
        steps="tiles.steps(item)",
        first_steps="tiles.steps(tiles.first())",
    ),
    "batches": Walk(
        None,
        lambda plan: plan.persistent and plan.problem.groups is not None,
        walked="tiles of D, batch by batch",
        end="args.groups * args.tiles_m * args.tiles_n",
    ),
    "groups": Walk(
        "walks/groups",
        lambda plan: plan.group_slots > 0,
        walked="tiles of D, group by group",
        tiles="Tiles(args, load_groups(args))",
    ),
    "k_groups": Walk(
        "walks/k_groups",
        lambda plan: plan.problem.groups is not None and plan.problem.groups.divides_k,
        walked="tiles of D, group by group",
        item="piece",
        steps="tiles.steps(piece)",
        k="piece.rows(k_step)",
    ),
    "k_blocks": Walk(
        "walks/k_blocks",
        lambda plan: (
            plan.problem.groups is not None
            and plan.problem.groups.divides_k
            and not plan.access.loads_k_from_any_row
        ),
        walked="tiles of D, group by group",
        item="piece",
        steps="tiles.steps(piece)",
    ),
    "launch_control": Walk(
        "walks/launch_control",
        lambda plan: plan.schedule_kind == "launch_control",
    ),
}
"""All walks of both families, general ones first: a kernel has the last one that holds for it."""


def walk_of(plan: Kernel) -> Walk:
    """Return the walk of a kernel: the last row of `WALKS` that holds for it.

    Raises:
        LookupError: No row holds: the kernel's kind of schedule has no walk yet.
    """
    for walk in reversed(WALKS.values()):
        if walk.holds(plan):
            return walk
    raise LookupError(f"no row of WALKS holds for a {plan.schedule_kind} kernel")
