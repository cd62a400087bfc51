"""The key of a matmul: one digest for equal matmuls, another one after each change."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from modules import spec_file

from gemmgen.hardware import DTYPES, SCALE_FORMATS
from gemmgen.problem import BlockScale, Groups, Matmul, Operand
from gemmgen.problem.canonical import digest
from gemmgen.problem.epilogue import PLAIN, Acc, Call, Listed, d_is
from gemmgen.problem.operations import OpParameter
from gemmgen.spec import load_spec

SCALED = BlockScale(SCALE_FORMATS["mxfp8"], DTYPES["ue8m0"], 32)
SLOPED = Listed(0.5, 2.0, ("column_bias", "leaky_relu"), (OpParameter("leaky_relu", "slope", 0.1),))
RICH = Matmul(
    a=Operand(DTYPES["e4m3"], "k", SCALED),
    b=Operand(DTYPES["e2m1"], "mn", SCALED, padded=True),
    c=DTYPES["fp32"],
    d=DTYPES["bf16"],
    accumulator=DTYPES["fp32"],
    epilogue=SLOPED.lowered(c=True),
)

CHANGES: dict[str, Any] = {
    "a": Operand(DTYPES["e5m2"], "k", SCALED),
    "b": Operand(DTYPES["e2m1"], "k", SCALED, padded=True),
    "c": None,
    "d": DTYPES["fp16"],
    "accumulator": DTYPES["fp16"],
    "epilogue": PLAIN,
    "deterministic": True,
    "batch_invariant": True,
    "copies_misaligned": True,
    "backward": True,
    "groups": Groups("batched", 4),
    "d_scale": BlockScale(SCALE_FORMATS["fp32_1x128"], DTYPES["fp32"], 128),
}
SLOPED_ALONE = Call("leaky_relu", (Acc(),), SLOPED.parameters)
LISTED_CHANGES: dict[str, Any] = {
    "alpha": 0.25,
    "beta": 1.0,
    "ops": ("leaky_relu", "column_bias"),
    "parameters": (OpParameter("leaky_relu", "slope", 0.2),),
}
OPERAND_CHANGES: dict[str, Any] = {
    "dtype": DTYPES["e5m2"],
    "major": "mn",
    "scale": None,
    "padded": True,
    "decoded": DTYPES["bf16"],
}
SCALE_CHANGES: dict[str, Any] = {
    "format": SCALE_FORMATS["nvfp4"],
    "dtype": DTYPES["e4m3"],
    "vector": 16,
}
PARAMETER_CHANGES: dict[str, Any] = {"op": "relu", "name": "limit", "value": 0.2}


@pytest.mark.parametrize(
    ("stem", "key"),
    [
        ("h100_bf16", "12300451ef37969fe38790542e6eecacc596127d831df1f72f76653a6beae116"),
        ("b200_fp16_leaky_relu", "c77f13a2e4d0b6015a9d8fc3b9eeb7a2df8def8b6f61ef6cb6fadf392fdbb144"),
        ("b200_mxfp8", "a8b2bc9aa7d075de921531cc5b75c379f9f9422155836fe750041c480b362a36"),
    ],
)
def test_the_key_of_a_spec_is_always_the_same(stem: str, key: str) -> None:
    """A key is written into records: a change here would make strangers of what they have measured."""
    assert load_spec(spec_file(stem)).problem.key == key


@pytest.mark.parametrize("name", [each.name for each in fields(Matmul)])
def test_each_member_of_a_matmul_changes_its_key(name: str) -> None:
    assert replace(RICH, **{name: CHANGES[name]}).key != RICH.key


@pytest.mark.parametrize("name", [each.name for each in fields(Operand)])
def test_each_member_of_an_operand_changes_the_key(name: str) -> None:
    assert replace(RICH, a=replace(RICH.a, **{name: OPERAND_CHANGES[name]})).key != RICH.key


@pytest.mark.parametrize("name", [each.name for each in fields(BlockScale)])
def test_each_member_of_a_scale_changes_the_key(name: str) -> None:
    scale = replace(SCALED, **{name: SCALE_CHANGES[name]})
    assert replace(RICH, a=replace(RICH.a, scale=scale)).key != RICH.key


@pytest.mark.parametrize("name", [each.name for each in fields(Listed)])
def test_each_member_of_a_list_of_operations_changes_the_key(name: str) -> None:
    changed = replace(SLOPED, **{name: LISTED_CHANGES[name]}).lowered(c=True)
    assert replace(RICH, epilogue=changed).key != RICH.key


@pytest.mark.parametrize("name", [each.name for each in fields(OpParameter)])
def test_each_member_of_a_parameter_changes_the_key(name: str) -> None:
    changed = replace(SLOPED.parameters[0], **{name: PARAMETER_CHANGES[name]})
    epilogue = d_is(Call("leaky_relu", (Acc(),), (changed,)))
    assert replace(RICH, epilogue=epilogue).key != replace(RICH, epilogue=d_is(SLOPED_ALONE)).key


def test_the_operands_of_a_matmul_cannot_be_mistaken_for_each_other() -> None:
    assert replace(RICH, a=RICH.b, b=RICH.a).key != RICH.key


def test_equal_matmuls_have_one_key_and_one_hash() -> None:
    whole = replace(RICH, epilogue=replace(SLOPED, alpha=2, beta=-0.0).lowered(c=True))
    other = replace(RICH, epilogue=replace(SLOPED, alpha=2.0, beta=0.0).lowered(c=True))
    assert whole == other
    assert (whole.key, hash(whole)) == (other.key, hash(other))


def test_a_title_a_gpu_and_sizes_are_not_in_the_key(tmp_path: Path) -> None:
    text = "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"
    (tmp_path / "one.yaml").write_text(f"title: one\ntarget: h100\n{text}")
    sizes = "check: {shapes: [[64, 128, 256]]}\nproblem: {m: 1, n: 8, k: 16}\n"
    (tmp_path / "other.yaml").write_text(f"title: other\ntarget: h200\n{text}{sizes}")
    one, other = (load_spec(tmp_path / f"{stem}.yaml").request for stem in ("one", "other"))
    assert one != other
    assert one.matmul.key == other.matmul.key


def test_what_has_no_canonical_form_has_no_digest() -> None:
    with pytest.raises(TypeError, match="no canonical JSON"):
        digest(replace(RICH, c={"fp32"}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(replace(RICH, epilogue=replace(SLOPED, alpha=float("inf")).lowered(c=True)))
