"""The key of a matmul: one digest for equal matmuls, another one after each change."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from modules import ROOT

from gemmgen.hardware import DTYPES, SCALE_FORMATS
from gemmgen.problem import BlockScale, Matmul, Operand
from gemmgen.problem.canonical import digest
from gemmgen.problem.operations import OpParameter
from gemmgen.spec import load_spec

SCALED = BlockScale(SCALE_FORMATS["mxfp8"], DTYPES["ue8m0"], 32)
RICH = Matmul(
    a=Operand(DTYPES["e4m3"], "k", SCALED),
    b=Operand(DTYPES["e2m1"], "mn", SCALED, padded=True),
    c=DTYPES["fp32"],
    d=DTYPES["bf16"],
    accumulator=DTYPES["fp32"],
    alpha=0.5,
    beta=2.0,
    ops=("column_bias", "leaky_relu"),
    parameters=(OpParameter("leaky_relu", "slope", 0.1),),
)

CHANGES: dict[str, Any] = {
    "a": Operand(DTYPES["e5m2"], "k", SCALED),
    "b": Operand(DTYPES["e2m1"], "k", SCALED, padded=True),
    "c": None,
    "d": DTYPES["fp16"],
    "accumulator": DTYPES["fp16"],
    "alpha": 0.25,
    "beta": 1.0,
    "ops": ("leaky_relu", "column_bias"),
    "parameters": (OpParameter("leaky_relu", "slope", 0.2),),
    "deterministic": True,
    "batch_invariant": True,
    "copies_misaligned": True,
    "backward": True,
}
OPERAND_CHANGES: dict[str, Any] = {
    "dtype": DTYPES["e5m2"],
    "major": "mn",
    "scale": None,
    "padded": True,
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
        ("h100_bf16", "e3319464cad8b2a02805f902f04b754503a4c73d8f4349122684128a547ce112"),
        ("b200_fp16_leaky_relu", "3cf6ed69290586e2499345d514667f92937ae7a885eb5195492ebe9ffaa851e4"),
        ("b200_mxfp8", "9fae744c8c824ff40ff8d6881f385587d8db4e732dd51c4b3925de6be1ce3331"),
    ],
)
def test_the_key_of_a_spec_is_always_the_same(stem: str, key: str) -> None:
    """A key is written into records: a change here would make strangers of what they have measured."""
    assert load_spec(ROOT / "specs" / f"{stem}.yaml").problem.key == key


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


@pytest.mark.parametrize("name", [each.name for each in fields(OpParameter)])
def test_each_member_of_a_parameter_changes_the_key(name: str) -> None:
    changed = replace(RICH.parameters[0], **{name: PARAMETER_CHANGES[name]})
    assert replace(RICH, parameters=(changed,)).key != RICH.key


def test_the_operands_of_a_matmul_cannot_be_mistaken_for_each_other() -> None:
    assert replace(RICH, a=RICH.b, b=RICH.a).key != RICH.key


def test_equal_matmuls_have_one_key_and_one_hash() -> None:
    whole = replace(RICH, alpha=1, beta=-0.0)
    other = replace(RICH, alpha=1.0, beta=0.0)
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
        digest(replace(RICH, ops={"relu"}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(replace(RICH, alpha=float("inf")))
