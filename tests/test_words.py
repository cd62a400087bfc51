"""A spec and `gemmgen explain` answer a word of another library with the field that it means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from modules import ROOT

from gemmgen.errors import GemmgenError
from gemmgen.hardware.elements import SCALE_FORMATS
from gemmgen.integrations import weights
from gemmgen.problem import GroupKind
from gemmgen.problem.operations import OPERATIONS, OPS
from gemmgen.spec import load_spec
from gemmgen.spec.hints import ELSEWHERE, GATES, IN_SECTIONS, KIND_OF_GROUPS
from gemmgen.spec.vocabulary import fields, meanings
from gemmgen.spec.weight_words import CHECKPOINTS, PAGE

pytestmark = pytest.mark.quick

HEAD = "title: t\ntarget: h100\n"
OPERANDS = "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"


def told(tmp_path: Path, text: str) -> str:
    """What the loader says of the wrong fields of a spec."""
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + (text if "operands" in text else OPERANDS + text))
    with pytest.raises(GemmgenError) as caught:
        load_spec(path)
    return "\n".join(each.message for each in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("groups: 8\n", "{kind: m_offsets, count: 8}"),
        ("groups: true\n", "write {kind: m_offsets, count: …}"),
        ("groups: batched\n", "write {kind: batched, count: …}"),
        ("groups: {kind: grouped, count: 8}\n", "that is m_offsets"),
        ("groups: {kind: contiguous, count: 8}\n", "that is m_offsets"),
        ("groups: {kind: m_contiguous, count: 8}\n", "that is m_offsets"),
        ("groups: {kind: masked, count: 8}\n", "that is m_masked"),
        ("groups: {kind: m_offsets, num_groups: 8}\n", "it is groups.count"),
        ("epilogue: {gate: silu}\n", "epilogue.accumulators: [gate, up]"),
        ("epilogue: {bias: true}\n", "epilogue.ops"),
        ("schedule: {split_k: 4}\n", "schedule.splits; kernels of groups and gates have none"),
        ("split_k: 4\n", "kernels of groups and gates have none"),
        ("schedule: {last_wave: stream_k}\n", "divide K by schedule.splits"),
        ("schedule: {last_wave: whole}\n", "leave it out"),
        ("epilogue: {accumulators: [gate, up], d: silu(gate)}\n", "the accumulator 'up'; use 'up'"),
        (
            "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: e4m3, scale: row}}\n",
            "row_scale, column_scale or tensor_scale in epilogue.ops",
        ),
        (
            "operands: {a: {dtype: e4m3, scale: nvfp4}, b: {dtype: e4m3}, d: {dtype: bf16}}\n",
            "write {format: nvfp4}",
        ),
    ],
)
def test_a_word_of_another_library_gets_the_field_that_it_means(
    text: str, answer: str, tmp_path: Path
) -> None:
    assert answer in told(tmp_path, text)


@pytest.mark.parametrize(
    "hint", sorted({*ELSEWHERE.values(), *(h for each in IN_SECTIONS.values() for h in each.values())})
)
def test_each_hint_names_a_field_that_there_is(hint: str) -> None:
    known = {*fields(), "problem", "groups"}
    assert any(re.search(rf"(?<![\w.]){re.escape(path)}(?!\w)", hint) for path in known), hint


def test_each_word_for_a_kind_of_groups_means_one_that_there_is() -> None:
    assert set(KIND_OF_GROUPS.values()) == set(get_args(GroupKind))
    assert KIND_OF_GROUPS.keys().isdisjoint(get_args(GroupKind))


# --- gemmgen explain


@pytest.mark.parametrize("word", [*OPS, *GATES, *fields()])
def test_each_field_operation_and_gate_is_explained(word: str) -> None:
    assert meanings(word)


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("a_rows", "groups.a_rows: "),
        ("swap-AB", "mma.swap_ab: "),
        ("stream_k", "divide K by schedule.splits"),
        ("silu", "SiLU"),
        ("swiglu", "silu(gate) * up"),
        ("num_groups", "groups"),
        ("gptq", "operands.b.scale.format: bf16_1x128, bf16_1x64, bf16_1x32, fp16_1x128"),
        ("AWQ", "format: bf16_zero_1x128, bf16_zero_1x64, fp16_zero_1x128 or fp16_zero_1x64; from_awq"),
        (
            "compressed-tensors",
            "operands.b.dtype: e2m1, with operands.b.scale.format: mxfp4, mxfp4_e4m3 or nvfp4; from_",
        ),
        ("pack_weight", "returns b and b_scale as matmul takes them; call"),
        ("weights", "operands.b.dtype is int4, e2m1, int8 or e4m3"),
        ("mxfp4 weights", "one ue8m0 scale for each block of 1 x 32 of them"),
        ("mxfp4", "and pack_weight of the module packs that B"),
    ],
)
def test_a_word_is_explained_by_what_it_is(word: str, answer: str) -> None:
    assert any(answer in meaning for meaning in meanings(word))


FORMATS_OF_OPERANDS = {
    "mxfp8": "ab",
    "mxfp4": "ab",
    "mxfp4_e4m3": "b",
    "nvfp4": "ab",
    "fp32_1x128": "abd",
    "fp32_128x128": "b",
    "ue8m0_1x128": "abd",
    "ue8m0_128x128": "b",
    "ue8m0_1x32": "ab",
    "bf16_1x128": "b",
    "bf16_zero_1x128": "b",
    "bf16_zero_1x64": "b",
    "bf16_1x64": "b",
    "bf16_1x32": "b",
    "fp16_1x128": "b",
    "fp16_1x64": "b",
    "fp16_1x32": "b",
    "fp16_zero_1x128": "b",
    "fp16_zero_1x64": "b",
}


def test_each_format_of_scales_is_listed() -> None:
    assert FORMATS_OF_OPERANDS.keys() == set(SCALE_FORMATS)


@pytest.mark.parametrize(("name", "operands"), FORMATS_OF_OPERANDS.items(), ids=FORMATS_OF_OPERANDS)
def test_a_format_of_scales_is_explained_with_the_operands_that_can_have_it(name: str, operands: str) -> None:
    (meaning,) = meanings(name)
    assert [each for each in "abd" if f"operands.{each}.scale.format" in meaning] == [*operands]


def test_words_of_checkpoints_name_functions_and_a_page_that_there_are() -> None:
    for checkpoint in CHECKPOINTS.values():
        assert set(re.findall(r"from_\w+", checkpoint.functions)) <= set(weights.__all__)
    assert (ROOT / PAGE).is_file()


def test_a_word_that_means_nothing_is_not_explained() -> None:
    assert meanings("tensorcore") == []


def test_the_names_of_operations_are_words() -> None:
    assert set(OPS) <= OPERATIONS.keys()


@pytest.mark.parametrize("word", sorted({word for words in IN_SECTIONS.values() for word in words}))
def test_a_word_that_the_loader_knows_is_explained(word: str) -> None:
    assert meanings(word)
