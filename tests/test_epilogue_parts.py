"""The parts of an epilogue: each feature changes its own, and an epilogue has the changes of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import jinja2
import pytest
from modules import made, spec_file

from gemmgen.features.gates.block_reader import BlockReader
from gemmgen.features.gates.rendering import GradientsOfGate
from gemmgen.features.groups.rendering import GroupedKernel
from gemmgen.features.groups.vector_reader import VectorReader
from gemmgen.features.rendering import sides_of
from gemmgen.features.saved_sums.rendering import SavedSums
from gemmgen.features.split_k.rendering import SplitK
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render import (
    _environment,  # pyright: ignore[reportPrivateUsage]
    render_module,
)
from gemmgen.render.epilogue import EpilogueParts, EpilogueView
from gemmgen.render.epilogue_changes import changed_parts
from gemmgen.render.operand_reads import BufferReader
from gemmgen.render.side import Rendering
from gemmgen.render.wgmma.view import HopperView

SPECS = Path(__file__).parent / "pairs" / "specs"


def epilogue_of(path: Path) -> EpilogueView:
    """Return the epilogue of a spec's kernel, which is a Hopper kernel."""
    plan = cast("WgmmaKernel", made(path).plan)
    return HopperView(plan, sides_of(plan)).epilogue


def test_an_epilogue_has_the_changes_of_groups_and_of_gradients() -> None:
    epilogue = epilogue_of(SPECS / "h100_bf16_batched_dgated.yaml")
    assert [type(reader) for reader in epilogue.parts.readers] == [VectorReader, BlockReader, BufferReader]
    assert epilogue.d_in_turn == 2
    assert epilogue.store.rows.end == "end"
    assert epilogue.store.facts == ("end",)
    assert not epilogue.loads.c_ends_with_group  # the matrices in C are one tensor of rows


def test_two_features_that_change_one_member_are_refused() -> None:
    plan = cast("WgmmaKernel", made(SPECS / "h100_bf16_dgated_erf.yaml").plan)
    parts = EpilogueParts.of(plan)
    groups, gradients = GroupedKernel(plan), GradientsOfGate(plan)
    assert (
        changed_parts(parts, (groups, gradients)).storing == changed_parts(parts, (gradients, groups)).storing
    )
    with pytest.raises(ValueError, match=r"saved and gradients_of_gate both change storing\.converts"):
        changed_parts(parts, (SavedSums(plan), groups, gradients))


def test_a_feature_that_drops_the_change_of_another_one_is_refused() -> None:
    class Anew(GroupedKernel):
        name = "anew"

        def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
            return EpilogueParts.of(self.plan)

    plan = cast("WgmmaKernel", made(SPECS / "h100_bf16_batched_dgated.yaml").plan)
    with pytest.raises(ValueError, match=r"groups and anew both change storing\.rows\.end"):
        changed_parts(EpilogueParts.of(plan), (GroupedKernel(plan), Anew(plan)))


@dataclass(frozen=True)
class Doubled(Rendering):
    """A feature that doubles D after the formula."""

    name = "doubled"

    @property
    def applies(self) -> bool:
        return True

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        return replace(parts, storing=replace(parts.storing, adjusts="doubled.j2"))


DOUBLED = """{% macro adjust(tile, row, column) %}
{{ tile }} *= 2  # at {{ row }}, {{ column }}{% endmacro %}
"""


@pytest.mark.parametrize(
    ("stem", "line"),
    [
        ("h100_bf16", "    tile *= 2  # at row, column"),
        ("b200_bf16", "    tile *= 2  # at row, column"),
        ("h100_bf16_scatter", "    tile *= 2  # at row, column"),
        ("h100_bf16_saved_interleaved", "    tile *= 2  # at row, column"),
        ("h100_bf16_dgated_erf", "        tile *= 2  # at row, column"),
        (
            "h100_bf16_split8_parallel",
            "    piece *= 2  # at origin.row + row, origin.column + column",
        ),
    ],
)
def test_a_feature_changes_a_tile_before_its_conversion_whoever_stores_it(
    stem: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = _environment()
    assert environment.loader is not None
    own = jinja2.DictLoader({"doubled.j2": DOUBLED})
    monkeypatch.setattr(environment, "loader", jinja2.ChoiceLoader([own, environment.loader]))
    text = render_module(
        made(spec_file(stem)).plan,
        lambda plan: (*sides_of(plan), Doubled(plan)),
        spec_name="doubled.yaml",
        spec_sha256="",
    )
    assert text.splitlines().count(line) == 1
    compile(text, stem, "exec")


def test_a_second_kernel_that_stores_d_refuses_another_conversion() -> None:
    plan = cast("WgmmaKernel", made(spec_file("h100_bf16_split8_parallel")).plan)
    with pytest.raises(ValueError, match=r"saved changes storing\.converts, but a second kernel stores D"):
        changed_parts(EpilogueParts.of(plan), (SavedSums(plan), SplitK(plan)))
