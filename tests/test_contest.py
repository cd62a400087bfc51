"""What identifies a problem in records, tables and libraries, and how it is described."""

from __future__ import annotations

import pytest
from modules import EVERY_SPEC, spec_file

from gemmgen.problem.contest import Contest
from gemmgen.spec import SpecFile, load_spec
from gemmgen.spec.model import spec_of

SPECS = [load_spec(path) for path in EVERY_SPEC]


def stated(**members: object) -> SpecFile:
    operand = {"dtype": "e4m3"}
    operands = {"a": operand, "b": operand, "d": {"dtype": "bf16"}}
    spec = spec_of({"title": "t", "target": "h200", "operands": operands, **members})
    assert spec is not None
    return SpecFile.of(spec)


@pytest.mark.parametrize(
    ("stem", "words"),
    {
        "h100_bf16": "bf16",
        "h100_bf16_128x128": "bf16",
        "h100_bf16_nn": "bf16 B mn-major",
        "h100_bf16_fp32_out": "bf16 to fp32",
        "h100_e4m3": "e4m3",
        "h100_e4m3_promoted": "e4m3 promoted",
        "h100_e4m3_scaled": "e4m3 + row_scale + column_scale",
        "h100_e5m2_e4m3": "e5m2 x e4m3 to e4m3 + tensor_scale",
        "h100_bf16_bias_gelu": "bf16 + column_bias + gelu_tanh",
        "h100_fp16_axpby": "fp16 + -1 alpha + 0.5 c",
        "h100_int8": "int8",
        "h100_bf16_int4": "bf16 x int4 (bf16_1x128)",
        "h100_bf16_mxfp4_experts": "bf16 x e2m1 (mxfp4) in 32 groups",
        "b200_mxfp4_mxfp8": "mxfp4 and mxfp8 (e4m3)",
    }.items(),
)
def test_a_problem_is_described_in_few_words(stem: str, words: str) -> None:
    assert load_spec(spec_file(stem)).description == words


def test_committed_specs_have_one_contest_for_each_description() -> None:
    by_words: dict[str, set[Contest]] = {}
    for source in SPECS:
        by_words.setdefault(source.description, set()).add(source.contest)
    assert len(by_words) >= 30
    assert {words: found for words, found in by_words.items() if len(found) != 1} == {}
    assert len(set[Contest]().union(*by_words.values())) == len(by_words)


def test_tiles_titles_shapes_and_gpus_are_no_part_of_a_contest() -> None:
    other = stated(bench={"shapes": [[8, 16, 32]]}, tile={"m": 128}, target="h100")
    assert other.contest == stated().contest


@pytest.mark.parametrize("promise", ["deterministic", "batch_invariant", "backward"])
def test_what_a_kernel_promises_is_no_part_of_a_contest(promise: str) -> None:
    promising = stated(**{promise: True})
    assert promising.problem.key != stated().problem.key
    assert promising.contest == stated().contest


def test_promoted_sums_are_another_contest_of_the_same_matmul() -> None:
    promoted, plain = stated(mma={"promote_k": 128}).contest, stated().contest
    assert promoted.matmul == plain.matmul
    assert (promoted.promoted, plain.promoted) == (True, False)
    assert stated(mma={"promote_k": 256}).contest == promoted
    assert str(promoted) == f"{plain}-promoted"


def test_the_form_of_an_epilogue_is_no_part_of_a_contest() -> None:
    assert stated(epilogue={"d": "relu(acc)"}).contest == stated(epilogue={"ops": ["relu"]}).contest
    assert stated(epilogue={"ops": ["relu"]}).contest != stated().contest
