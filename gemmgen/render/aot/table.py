"""The facts of an exported kernel as initializers of gemmgen_launch.h's structures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.axes import AxisExtent
from gemmgen.render.aot.facts import Described, LaunchFacts, Pointer

Fields = tuple[tuple[str, object], ...]
"""Members of a structure with their values in C."""


@dataclass(frozen=True)
class FactsTable:
    """The facts of one kernel in C; C++ requires all members, in the order of the header."""

    facts: LaunchFacts

    @property
    def arguments(self) -> Iterator[tuple[str, ...]]:
        """The initializer of each argument of the kernel, in lines."""
        for argument in self.facts.arguments:
            moved = argument if isinstance(argument, Described) else None
            pointer = argument if isinstance(argument, Pointer) else None
            type_name = moved.type[0] if moved else "UINT8"
            lines: tuple[Fields, ...] = (
                (
                    ("name", _text(argument.argument.tensor)),
                    ("passing", f"GEMMGEN_{argument.passing}"),
                    ("element_bytes", argument.argument.dtype.stored_bytes),
                ),
                (("member", self._member(argument)),),
                (
                    ("rows", _extent(moved.rows if moved else None)),
                    ("columns", _extent(moved.columns if moved else None)),
                ),
                (
                    ("type", f"CU_TENSOR_MAP_DATA_TYPE_{type_name}"),
                    ("swizzle", f"CU_TENSOR_MAP_SWIZZLE_{moved.swizzle[0] if moved else 'NONE'}"),
                    ("box", f"{{{', '.join(map(str, moved.driver_box if moved else (0,)))}}}"),
                    ("box_rows", moved.box_rows if moved else 0),
                ),
                (
                    ("alignment", pointer.alignment if pointer else 0),
                    ("pointee", _text(pointer.pointee if pointer else None)),
                ),
            )
            yield tuple(" ".join(f".{name} = {value}," for name, value in line) for line in lines)

    @property
    def rows(self) -> Iterator[str]:
        """The members of the kernel's facts, each with its value, in lines."""
        facts, plan, launch = self.facts, self.facts.plan, self.facts.launch
        major, minor = facts.capability
        workspace = facts.workspace
        lines: tuple[Fields, ...] = (
            (
                ("cubin_fnv1a", f"UINT64_C({facts.cubin_digest:#018x})"),
                ("cubin_bytes", len(facts.cubin)),
            ),
            (("capability_major", major), ("capability_minor", minor)),
            (
                ("arguments", "arguments"),
                ("argument_count", len(facts.arguments)),
                ("d", facts.d),
            ),
            (
                ("max_extent", facts.max_extent),
                ("most_groups", facts.most_groups),
                ("b_blocks", plan.problem.b_blocks),
            ),
            (("column_unit", facts.column_unit), ("column_rule", _text(facts.column_rule))),
            (("k_rule", _text(facts.k_rule)),),
            (
                ("tile_m", plan.program_tile_m),
                ("tile_n", plan.program_tile_n),
                ("tile_k", plan.cta_tile_k),
                ("tiles_together", plan.tiles_together),
            ),
            (
                ("is_single_tile", int(plan.schedule_kind == "single_tile")),
                ("counts_rows_of_groups", int(facts.counts_rows_of_groups)),
            ),
            (
                ("splits", plan.splits),
                ("is_persistent", int(plan.persistent)),
                ("programs_per_sm", facts.programs_per_sm),
                ("most_programs", facts.most_programs),
            ),
            (
                ("workspace", self._offset("workspace") if workspace else 0),
                ("consumers", workspace.consumers if workspace else 0),
                ("sum_bytes", workspace.sum_bytes if workspace else 0),
                ("sums_per_counter", workspace.sums_per_counter if workspace else 0),
            ),
            (
                ("cluster_ctas", launch.cluster_ctas),
                ("threads", launch.threads),
                ("smem_bytes", launch.smem_bytes),
            ),
            (("is_dependent", int(launch.is_dependent)),),
        )
        for line in lines:
            yield " ".join(f".{name} = {value}," for name, value in line)

    def _member(self, argument: Described | Pointer) -> str:
        """Return the place of an argument in the caller's structure: all parts of B are one member."""
        in_workspace = argument.argument.kind == "workspace"
        return self._offset("workspace" if in_workspace else argument.argument.tensor)

    def _offset(self, member: str) -> str:
        return f"offsetof({self.facts.stem}_arguments, {member})"


def _text(text: str | None) -> str:
    return "NULL" if not text else f'"{text}"'


def _extent(extent: AxisExtent | None) -> str:
    if extent is None:
        return "{GEMMGEN_M, 0, 1, 0}"
    return f"{{GEMMGEN_{extent.of.upper()}, {extent.times}, {extent.per}, {int(extent.of_groups)}}}"
