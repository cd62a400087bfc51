"""The epilogue's expression: its text, its one form, its statements, and kernels that compute it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn import random_inputs
from torch import Tensor

from gemmgen.errors import GemmgenError
from gemmgen.hardware import DTYPES
from gemmgen.numerics.drawing import is_exact
from gemmgen.numerics.evaluation import evaluated
from gemmgen.numerics.reference import reference
from gemmgen.planner import plan_spec
from gemmgen.problem.canonical import digest
from gemmgen.problem.epilogue import (
    PLAIN,
    Acc,
    Call,
    Cast,
    Epilogue,
    Load,
    Number,
    Output,
    Spelling,
    Value,
    d_is,
    keeps_zeros,
    minus,
    plus,
    times,
    written,
)
from gemmgen.product import make
from gemmgen.render.statements import statements
from gemmgen.spec import SpecFile
from gemmgen.spec.expression import ExpressionError, parsed
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import ring_launch
from gemmgen.verify.simulation import simulate_product

EXTRAS = {
    "c": torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]]),
    "tensor_scale": torch.tensor([0.75]),
    "row_scale": torch.tensor([2.0, -3.0]),
    "column_scale": torch.tensor([0.5, 1.5, -1.0]),
    "row_bias": torch.tensor([4.0, -0.5]),
    "column_bias": torch.tensor([1.0, 2.0, -4.0]),
}
SUMS = torch.tensor([[0.5, -1.5, 2.0], [-0.25, 3.0, 1.0]], dtype=torch.float64)


def source_of(
    epilogue: str, *, c: bool = True, target: str = "h100", more: str = "", stem: str = "x"
) -> SpecFile:
    operands = ["  a: {dtype: bf16}", "  b: {dtype: bf16}", *["  c: {dtype: bf16}"] * c, "  d: {dtype: bf16}"]
    lines = ("title: t", f"target: {target}", "operands:", *operands, f"epilogue: {{{epilogue}}}", more)
    return parse_spec("\n".join(lines).encode(), stem)


# --- one form


@pytest.mark.parametrize(
    ("listed", "expression"),
    [
        ("ops: []", "acc + c"),
        ("alpha: -1, beta: 0.5", "0.5 * c - acc"),
        ("alpha: 2, beta: -1", "acc * 2 - c"),
        ("ops: [residual]", "c + acc"),
        ("ops: [silu, residual]", "c + silu(acc)"),
        (
            "ops: [row_scale, column_scale, column_bias, residual]",
            "column_scale * (row_scale * acc) + column_bias + c",
        ),
        (
            "alpha: 0.5, ops: [{leaky_relu: {slope: 0.25}}, tensor_scale]",
            "leaky_relu(acc / 2 + c, slope=0.25) * tensor_scale",
        ),
        ("ops: [leaky_relu]", "leaky_relu(acc + c)"),
    ],
)
def test_an_expression_that_a_list_can_say_is_the_same_matmul(listed: str, expression: str) -> None:
    expression = expression.replace("acc / 2", "0.5 * acc")
    one, other = source_of(listed), source_of(f'd: "{expression}"')
    assert one.problem == other.problem
    assert one.problem.key == other.problem.key


def test_an_expression_that_a_list_can_say_gives_the_same_module(tmp_path: Path) -> None:
    def module(name: str, epilogue: str) -> str:
        directory = tmp_path / name
        directory.mkdir()
        text = (
            "title: t\ntarget: h100\noperands:\n  a: {dtype: bf16}\n  b: {dtype: bf16}\n  d: {dtype: bf16}\n"
        )
        (directory / "x.yaml").write_text(f"{text}epilogue: {{{epilogue}}}\n")
        return re.sub(r"\b[0-9a-f]{64}\b", "", make(directory / "x.yaml").module)

    listed = module("list", "alpha: 0.5, ops: [column_bias, silu, row_scale]")
    assert module("expression", 'd: "silu(column_bias + 0.5 * acc) * row_scale"') == listed


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2 * (acc * 3)", "6 * acc"),
        ("acc * 1 + 0", "acc"),
        ("-(-acc)", "acc"),
        ("1 + acc", "acc + 1"),
        ("c - (acc - 1)", "-(acc - 1) + c"),
        ("c + 0.5 + acc", "acc + (c + 0.5)"),
        ("(acc + c) * -2", "-2 * (acc + c)"),
        ("  relu( acc )\n* row_scale", "relu(acc) * row_scale"),
        ("acc - -3 * c", "acc + 3 * c"),
    ],
)
def test_a_value_has_one_form(text: str, form: str) -> None:
    assert written(parsed(text)) == form
    assert parsed(form) == parsed(text)


# --- random expressions


def random_value(generator: torch.Generator, depth: int) -> Value:
    """An expression over all kinds of nodes, of which the sums are one."""

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    if depth == 0:
        leaves = (Acc(), Acc(), Number(draw(9) / 2 - 2), *(Load(name) for name in EXTRAS))
        return leaves[draw(len(leaves))]
    one, other = random_value(generator, depth - 1), random_value(generator, draw(depth))
    match draw(5):
        case 0:
            return one if isinstance(one, Number) else Call(("relu", "silu", "gelu_erf")[draw(3)], (one,))
        case 1:
            return minus(one, other)
        case 2 | 3:
            return times(one, other)
        case _:
            return plus(one, other)


def random_values() -> list[Value]:
    generator = torch.Generator().manual_seed(7)
    values = [plus(random_value(generator, 1 + i % 4), Acc()) for i in range(300)]
    found = [value for value in dict.fromkeys(values) if value != Acc()]
    assert len(found) > 200
    return found


def test_a_text_is_read_as_the_value_that_it_was_written_from() -> None:
    for value in random_values():
        if len(written(value)) <= 500:
            assert parsed(written(value)) == value


def namespace() -> dict[str, Any]:
    functional = torch.nn.functional
    functions = {"relu": functional.relu, "silu": functional.silu, "gelu_erf": functional.gelu}
    extras = {name: each.double() for name, each in EXTRAS.items()}
    return functions | extras | {name: extras[name][:, None] for name in ("row_scale", "row_bias")}


def test_statements_compute_what_the_expression_says() -> None:
    for value in random_values():
        names = namespace() | {"tile": SUMS.clone()}
        for statement in statements(d_is(value), Spelling(), "tile"):
            operator = statement.operator.removesuffix("=")
            before = f"{statement.variable} {operator} " * bool(operator)
            exec(f"{statement.variable} = {before}({statement.value})", names)
        expected = evaluated(d_is(value), {"acc": SUMS}, EXTRAS)["d"]
        assert torch.allclose(torch.as_tensor(names["tile"]).expand(2, 3), expected.expand(2, 3)), written(
            value
        )


def test_each_tensor_is_announced_once_before_it_is_read() -> None:
    for value in random_values():
        announced: list[str] = []
        for statement in statements(d_is(value), Spelling(), "tile"):
            announced += [load.tensor for load in statement.loads]
            assert {name for name in EXTRAS if re.search(rf"\b{name}\b", statement.value)} <= {*announced}
        assert len(announced) == len(set(announced))
        assert set(announced) == set(d_is(value).loads)


# --- values that no kernel computes yet


GATE = Epilogue(
    ("gate", "up"),
    (
        Output("d", times(Call("silu", (Acc("gate"),)), Acc("up"))),
        Output("kept", Cast(DTYPES["bf16"], Acc("gate"))),
    ),
)


def test_several_accumulators_make_several_outputs() -> None:
    gate, up = SUMS, SUMS.flip(0) + 1 / 3
    found = evaluated(GATE, {"gate": gate, "up": up}, {})
    assert torch.equal(found["d"], torch.nn.functional.silu(gate) * up)
    assert found.keys() == {"d", "kept"}
    rounded = evaluated(GATE, {"gate": up, "up": up}, {})["kept"]
    assert torch.equal(rounded, up.bfloat16().double())
    assert not torch.equal(rounded, up)
    with pytest.raises(ValueError, match="several outputs"):
        _ = GATE.value
    assert not GATE.is_chain


def test_kinds_of_values_of_one_name_have_digests_of_their_own() -> None:
    epilogues = [
        PLAIN,
        GATE,
        d_is(times(Acc("c"), Acc())),
        d_is(times(Load("c"), Acc())),
        d_is(Cast(DTYPES["bf16"], Acc())),
        d_is(Call("relu", (Acc(),))),
        d_is(times(Number(2.0), Acc())),
        d_is(plus(Acc(), Number(2.0))),
    ]
    assert len({digest(each) for each in epilogues}) == len(epilogues)


# --- what is known of an expression


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("2 * silu(acc)", True),
        ("relu(acc) - acc", True),
        ("acc + 1", False),
        ("acc + c", False),
        ("acc * row_scale", False),  # of an infinite factor the product is NaN
    ],
)
def test_a_zero_is_kept_where_nothing_is_added(text: str, keeps: bool) -> None:
    assert keeps_zeros(d_is(parsed(text)), finite_scalars=False) == keeps


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("2 * acc - c", True),
        ("relu(acc) * c", True),
        ("0.1 * acc + c", False),
        ("acc * acc + c", False),
        ("silu(c) + acc", False),
    ],
)
def test_few_bits_stay_few_in_what_multiplies_no_sums(text: str, exact: bool) -> None:
    assert is_exact(source_of(f'd: "{text}"').problem) == exact


def test_the_reference_is_the_expression() -> None:
    problem = source_of('d: "2 * silu(acc * row_scale - 0.5 * column_bias) * c + 1"').problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(0))
    x: Tensor = inputs.a.double() @ inputs.b.double()
    x = x * inputs.extras["row_scale"].double()[:, None] - inputs.extras["column_bias"].double() / 2
    x = 2 * torch.nn.functional.silu(x) * inputs.extras["c"].double() + 1
    torch.testing.assert_close(reference(inputs, problem), x)


def test_a_contest_has_the_name_of_the_list_or_the_words_of_the_steps() -> None:
    assert source_of('d: "silu(0.5 * acc + c)"').description == "bf16 + 0.5 alpha + c + silu"
    assert source_of('d: "silu(acc) * c - 3"').description == "bf16 + silu + times c + plus -3"


# --- refusals


def test_a_message_points_into_the_text() -> None:
    with pytest.raises(ExpressionError) as caught:
        parsed("  silu(acc) + siluu(acc)")
    assert caught.value.offset == 14
    assert caught.value.message.endswith("did you mean silu?")


@pytest.mark.parametrize(
    "text", ["(" * 240 + "acc" + ")" * 240, "-" * 400 + "acc", "acc" + " + acc" * 80, "acc * " + "9" * 490]
)
def test_no_text_is_too_deep_or_too_long_to_be_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parsed(text)


@pytest.mark.parametrize("text", ["acc * acc", "silu(acc) + acc", "acc * (row_scale + c)", "acc * relu(c)"])
def test_what_keeps_two_values_is_refused_with_a_rule(text: str) -> None:
    with pytest.raises(GemmgenError) as caught:
        plan_spec(source_of(f'd: "{text}"', c="c" in text.replace("acc", "")))
    assert [found.code for found in caught.value.diagnostics] == ["epilogue-expression"]


# --- kernels


KERNELS = {
    "gate": (
        "h100",
        'd: "2 * silu(acc * row_scale - 0.5 * column_bias) * c + 1", subtile_n: 32',
        "tile: {m: 128, n: 64, k: 64}",
    ),
    "factors": (
        "h100",
        'd: "c - leaky_relu(acc + tensor_scale, slope=0.25) * row_bias", subtile_n: 64',
        "tile: {m: 64, n: 64, k: 64}",
    ),
    "parts": (
        "h100",
        'd: "column_bias * relu(0.5 * acc + 3 * row_scale) - 0.25 * c"',
        "tile: {m: 64, n: 64, k: 64}\nschedule: {kind: tiled, splits: 2, reduction: parallel}",
    ),
    "blackwell": (
        "b200",
        'd: "silu(acc * tensor_scale - column_scale) * c - 2", subtile_n: 16',
        "tile: {m: 128, n: 32, k: 64}",
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_no_list_says(name: str, tmp_path: Path) -> None:
    target, epilogue, more = KERNELS[name]
    operands = "operands:\n  a: {dtype: bf16}\n  b: {dtype: bf16}\n  c: {dtype: bf16}\n  d: {dtype: bf16}"
    path = tmp_path / f"expression_{name}.yaml"
    path.write_text(f"title: t\ntarget: {target}\n{operands}\nepilogue: {{{epilogue}}}\n{more}\n")
    product = make(path)
    simulation = simulate_product(product, (ring_launch(product.plan, ("random",)),))
    assert simulation.diagnostics == ()
