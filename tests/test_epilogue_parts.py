"""The parts of an epilogue: each feature changes its own, and an epilogue has the changes of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from modules import made

from gemmgen.features.gates.block_reader import BlockReader
from gemmgen.features.groups.vector_reader import VectorReader
from gemmgen.features.rendering import sides_of
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.epilogue import EpilogueParts, EpilogueView
from gemmgen.render.operand_reads import BufferReader
from gemmgen.render.wgmma.view import HopperView

SPECS = Path(__file__).parent / "pairs" / "specs"
OWN = {"d_in_turn": ("gradients_of_gate",), "accumulators": ("gates",), "end": ("groups",)}
"""The sides that set each of the members that `marks` returns."""


def epilogue_of(path: Path) -> EpilogueView:
    """Return the epilogue of a spec's kernel, which is a Hopper kernel."""
    plan = cast("WgmmaKernel", made(path).plan)
    return HopperView(plan, sides_of(plan)).epilogue


def marks(parts: EpilogueParts) -> dict[str, object]:
    """Return a member of each part of an epilogue."""
    return {
        "d_in_turn": parts.d_in_turn,
        "accumulators": parts.loads.accumulators,
        "end": parts.storing.rows.end,
    }


def test_an_epilogue_has_the_changes_of_groups_and_of_gradients() -> None:
    epilogue = epilogue_of(SPECS / "h100_bf16_batched_dgated.yaml")
    assert [type(reader) for reader in epilogue.parts.readers] == [VectorReader, BlockReader, BufferReader]
    assert epilogue.d_in_turn == 2
    assert epilogue.store.rows.end == "end"
    assert epilogue.store.facts == ("end",)
    assert not epilogue.loads.c_ends_with_group  # the matrices in C are one tensor of rows


def test_no_feature_drops_what_another_one_has_changed() -> None:
    seen = set[str]()
    for path in sorted(SPECS.glob("h100_*.yaml")):
        plan = made(path).plan
        unchanged = EpilogueParts.of(plan)
        rows = replace(unchanged.storing.rows, end="marked")
        parts = replace(
            unchanged,
            d_in_turn=3,
            loads=replace(unchanged.loads, accumulators=3),
            storing=replace(unchanged.storing, rows=rows),
        )
        for side in sides_of(plan):
            changed = side.changed_epilogue(parts)
            assert changed.readers[-len(parts.readers) :] == parts.readers
            dropped = {name for name, mark in marks(parts).items() if marks(changed)[name] != mark}
            assert dropped == {name for name in dropped if side.name in OWN[name]}
            seen |= {side.name} if changed != parts else set()
    assert {"composed_tiles", "gates", "gradients_of_gate", "saved", "groups", "rows_by_index"} <= seen
