"""An element type, an operation, a GPU and a walk come from their tables alone, and their kernels are right.

Each test registers one row (and a template for an activation or a walk) that no other file knows, and takes a
spec with it through the whole chain: planned, rendered, compiled, simulated against the reference, and on
Hopper exported, with the launcher in C compiled. Where any code still looked up a name of its own, the
new one would be missing there.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

import jinja2
import pytest
import torch
from programs import compiled_c

from gemmgen.bench.record import ceilings_of
from gemmgen.build import export
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import BLACKWELL, DTYPES, GPUS, HOPPER, DType, Gpu
from gemmgen.hardware.elements import FP8, INPUTS, OUTPUTS, outputs_of
from gemmgen.hardware.gpus import architectures, gpu_of, targets_of
from gemmgen.lower import lower
from gemmgen.numerics.evaluation import MODULES, activated
from gemmgen.planner import family_for
from gemmgen.problem.operations import (
    ACTIVATIONS,
    OPERATIONS,
    Operation,
    Parameter,
    stated_parameters,
    torch_call,
)
from gemmgen.product import Product, make
from gemmgen.render import _environment  # pyright: ignore[reportPrivateUsage]
from gemmgen.render.walks import WALKS, Walk, walk_of
from gemmgen.spec import Spec, load_spec
from gemmgen.verify.launches import ring_launch
from gemmgen.verify.simulation import simulate_product

HOPPER_TILE = "tile: {m: 64, n: 64, k: 64}\ncluster: {m: 1, n: 1}\nbuffering: {stages: 3}\n"
BLACKWELL_TILE = "tile: {m: 128, n: 64, k: 64}\ncluster: {m: 1, n: 1}\nbuffering: {stages: 3}\n"


def spec_text(target: str, dtypes: tuple[str, str, str], more: str = "") -> str:
    a, b, d = dtypes
    operands = f"operands: {{a: {{dtype: {a}}}, b: {{dtype: {b}}}, d: {{dtype: {d}}}}}\n"
    tile = BLACKWELL_TILE if GPUS[target].architecture.mma == "tcgen05" else HOPPER_TILE
    return f"title: a new row\ntarget: {target}\n{operands}{tile}{more}"


def made(folder: Path, text: str) -> Product:
    path = folder / "new_row.yaml"
    path.write_text(text)
    return make(path)


def proven(folder: Path, text: str) -> Product:
    """The product of a spec, once it was compiled as planned and its numbers are right in the simulator.

    A Hopper kernel is exported too, and the C around it compiles without a warning.
    """
    product = made(folder, text)
    lower(product.module, product.plan, path="new_row.yaml", stem="new_row")
    simulation = simulate_product(product, (ring_launch(product.plan, ("lazy", "random")),))
    assert simulation.diagnostics == ()
    assert simulation.notes == ()
    if product.plan.architecture.mma == "wgmma":
        directory = folder / "aot"
        export(folder / "new_row.yaml", directory)
        compiled_c("-fsyntax-only", directory / "new_row.c")
    return product


def add_templates(folder: Path, templates: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the renderer find templates, by their names, in a folder of their own before the package's."""
    for name, text in templates.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = _environment()
    assert environment.loader is not None
    own = jinja2.FileSystemLoader(folder)
    monkeypatch.setattr(environment, "loader", jinja2.ChoiceLoader([own, environment.loader]))


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(GemmgenError) as caught:
        made(folder, text)
    return str(caught.value)


@pytest.fixture(autouse=True)
def tables() -> Generator[None]:
    """Leave each table as it was: a row that is put back comes last, and messages list the rows in order."""
    before = [(table, dict(table)) for table in (DTYPES, OPERATIONS, GPUS, WALKS)]
    yield
    for table, rows in before:
        table.clear()
        cast("dict[str, object]", table).update(rows)


# --- element types


@pytest.fixture
def bf8(monkeypatch: pytest.MonkeyPatch) -> DType:
    """The 8-bit float with 5 bits of exponent under the name that other makers' tools give it.

    It replaces the row of e5m2, so nothing can fall back on that name, and its bits are real: Gluon, torch
    and PTX know them, which no made-up type would survive.
    """
    monkeypatch.delitem(DTYPES, "e5m2")
    row = DType(
        "bf8", 8, "float", "gl.float8e5", "torch.float8_e5m2", "fp8e5", ptx="e5m2", mlir="f8E5M2",
        largest=57_344.0, significand=3,
        wgmma_accumulators=("fp32", "fp16"), tcgen05_kind="f8f6f4", converted_from=("fp32", "fp16"),
        tolerance=0.13,
    )  # fmt: skip
    monkeypatch.setitem(DTYPES, row.name, row)
    return row


def test_an_element_type_without_a_row_is_refused_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(DTYPES, "e5m2")
    told = refusal(tmp_path, spec_text("h100", ("e5m2", "e4m3", "e5m2")))
    assert "operands.a.dtype: expected bf16, fp16, tf32, e4m3, int8, e2m1 or int4, found" in told
    assert "operands.d.dtype: expected bf16, fp16, fp32, e4m3 or int32, found" in told
    assert "e5m2" not in {*INPUTS, *OUTPUTS, *FP8, *outputs_of("fp32")}
    with pytest.raises(KeyError, match=r"no element type is called 'e5m3'; there are bf16, .*mean e4m3"):
        DTYPES["e5m3"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_an_element_type_is_one_row(tmp_path: Path, bf8: DType, target: str) -> None:
    product = proven(tmp_path, spec_text(target, ("e4m3", "bf8", "bf8")))
    assert product.plan.problem.b.dtype is bf8
    for argument, dtype in (("a", "float8_e4m3fn"), ("b", "float8_e5m2"), ("out", "float8_e5m2")):
        assert f'    "{argument}": {{"dtype": torch.{dtype}, ' in product.module
    assert "e5m2" not in product.module.replace("float8_e5m2", "")


def test_a_new_element_type_is_in_messages_and_in_the_schema(tmp_path: Path, bf8: DType) -> None:
    choices = Spec.model_json_schema()["$defs"]["InputA"]["properties"]["dtype"]["enum"]
    assert choices == ["bf16", "fp16", "tf32", "e4m3", "int8", "e2m1", "int4", bf8.name]
    told = refusal(tmp_path, spec_text("h100", ("bf9", "bf8", "fp32")))
    assert 'found the text "bf9"; did you mean bf8?' in told
    told = refusal(tmp_path, spec_text("h100", ("bf8", "bf16", "fp32")))
    assert "use e4m3 or bf8" in told


# --- operations

RELU6 = Operation("relu6", "ReLU6", torch="relu6", register_class="linear")
RELU6_TEMPLATE = '''@gluon.jit
def relu6(x):
    """x between 0 and 6."""
    return gl.where(x <= 0.0, 0.0, gl.where(x >= 6.0, 6.0, x))
'''
SHRINK = Operation(
    "hardshrink", "hard shrinkage", torch="hardshrink", register_class="linear",
    parameters=(Parameter("threshold", 0.5, 0.0, 100.0, "magnitude below which x is 0", torch="lambd"),),
)  # fmt: skip
SHRINK_TEMPLATE = '''@gluon.jit
def hardshrink(x):
    """x where it is further from 0 than HARDSHRINK_THRESHOLD, and 0."""
    return gl.where(gl.abs(x) > HARDSHRINK_THRESHOLD, x, 0.0)
'''
RELU2 = Operation(
    "relu2",
    "squared ReLU",
    torch="relu",
    then=("square",),
    register_class="linear",
)
RELU2_TEMPLATE = '''@gluon.jit
def relu2(x):
    """The square of x, and 0 for negative x."""
    return gl.where(x <= 0.0, 0.0, x * x)
'''


@pytest.fixture
def activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three activations, one of them with a parameter: rows, and templates in a folder of their own."""
    templates: dict[str, str] = {}
    for row, template in ((RELU6, RELU6_TEMPLATE), (SHRINK, SHRINK_TEMPLATE), (RELU2, RELU2_TEMPLATE)):
        monkeypatch.setitem(OPERATIONS, row.name, row)
        templates[f"shared/activation_{row.name}.py.j2"] = template
    add_templates(tmp_path / "templates", templates, monkeypatch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_an_activation_is_one_row_and_one_template(tmp_path: Path, activations: None, target: str) -> None:
    ops = "epilogue: {alpha: 0.25, ops: [relu6, {hardshrink: {threshold: 0.75}}]}\n"
    product = proven(tmp_path, spec_text(target, ("bf16", "bf16", "bf16"), ops))
    assert "HARDSHRINK_THRESHOLD = gl.constexpr(0.75)" in product.module
    parameters = product.source.problem.parameters
    assert torch_call("relu6", "d", parameters) == "torch.nn.functional.relu6(d)"
    assert torch_call("hardshrink", "d", parameters) == "torch.nn.functional.hardshrink(d, lambd=0.75)"


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_an_activation_that_torch_has_in_two_steps_is_one_row_and_one_template(
    tmp_path: Path, activations: None, target: str
) -> None:
    """Squared ReLU: ``torch.nn.functional`` has no function of that name."""
    ops = "epilogue: {ops: [relu2]}\n"
    proven(tmp_path, spec_text(target, ("bf16", "bf16", "bf16"), ops))
    assert torch_call("relu2", "d", ()) == "torch.square(torch.nn.functional.relu(d))"
    assert torch.equal(activated("relu2", torch.tensor([-3.0, 0.0, 3.0])), torch.tensor([0.0, 0.0, 9.0]))


def test_a_template_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "relu6", RELU6)
    with pytest.raises(jinja2.TemplateNotFound, match=r"activation_relu6\.py\.j2"):
        made(tmp_path, spec_text("h100", ("bf16", "bf16", "bf16"), "epilogue: {ops: [relu6]}\n"))


def test_where_an_activation_moves_zero_an_empty_product_is_computed(
    tmp_path: Path, activations: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = spec_text("b200", ("bf16", "bf16", "bf16"), "epilogue: {ops: [relu6]}\n")
    computed = '"vanishes": False'
    assert computed not in made(tmp_path, text).module  # D is set to zero
    monkeypatch.setitem(OPERATIONS, "relu6", replace(RELU6, keeps_zero=False))
    assert computed in made(tmp_path, text).module


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_leaky_relu_has_the_slope_of_its_spec(tmp_path: Path, target: str) -> None:
    ops = "epilogue: {alpha: -1.0, ops: [{leaky_relu: {slope: 0.125}}]}\n"
    product = proven(tmp_path, spec_text(target, ("bf16", "bf16", "fp32"), ops))
    assert "LEAKY_RELU_SLOPE = gl.constexpr(0.125)" in product.module


@pytest.mark.parametrize(
    "op", ["leaky_relu", "{leaky_relu: }", "{leaky_relu: {}}", "{leaky_relu: {slope: }}"]
)
def test_a_parameter_that_is_left_out_has_its_default(tmp_path: Path, op: str) -> None:
    product = made(tmp_path, spec_text("h100", ("bf16", "bf16", "fp32"), f"epilogue: {{ops: [{op}]}}\n"))
    assert product.plan.problem.ops == ("leaky_relu",)
    (slope,) = product.plan.problem.parameters
    assert (slope.op, slope.name, slope.value) == ("leaky_relu", "slope", 0.01)
    assert "LEAKY_RELU_SLOPE = gl.constexpr(0.01)" in product.module


def test_a_spec_with_parameters_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "leaky.yaml"
    more = "epilogue: {ops: [relu, {leaky_relu: {slope: 1}}]}\n"
    path.write_text(spec_text("h100", ("bf16", "bf16", "fp32"), more))
    source = load_spec(path)
    assert Spec.model_validate(source.spec.model_dump(mode="json", exclude_unset=True)) == source.spec
    assert source.locate("epilogue.ops.1.leaky_relu.slope") == (7, 45)


@pytest.mark.parametrize("name", ["gelu", "relu7", "residual"])
def test_no_name_falls_through_to_another_activation(name: str) -> None:
    x = torch.ones(1, 1)
    message = name if name in OPERATIONS else f"no epilogue operation is called '{name}'"
    with pytest.raises(KeyError, match=message):
        activated(name, x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_all_that_its_users_need(name: str) -> None:
    row = OPERATIONS[name]
    assert row.operand == "none"
    assert row.register_class != "none"
    assert hasattr(MODULES[row.module], row.torch)
    assert all(hasattr(torch, function) for function in row.then)
    zero = activated(name, torch.zeros(1), stated_parameters([(name, {})]))
    assert (zero.item() == 0) == row.keeps_zero


@pytest.mark.parametrize(
    ("op", "text", "expected"),
    [
        (
            {"clamp": {"min": -0.5, "max": 2.0}},
            "torch.clamp(d, min=-0.5, max=2.0)",
            [-0.5, -0.5, -0.25, 0.0, 1.5, 2.0, 2.0, math.nan],
        ),
        (
            {"clamp_max": {"max": 1.0}},
            "torch.clamp_max(d, max=1.0)",
            [-math.inf, -3.0, -0.25, 0.0, 1.0, 1.0, 1.0, math.nan],
        ),
    ],
)
def test_a_limit_is_what_torch_computes(
    op: dict[str, dict[str, float]], text: str, expected: list[float]
) -> None:
    x = torch.tensor([-math.inf, -3.0, -0.25, 0.0, 1.5, 3.0, math.inf, math.nan])
    ((name, _),) = op.items()
    parameters = tuple(stated_parameters(op.items()))
    assert torch_call(name, "d", parameters) == text
    torch.testing.assert_close(activated(name, x, parameters), torch.tensor(expected), equal_nan=True)


def test_quick_gelu_is_x_times_a_logistic_function() -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    for alpha in (1.702, 0.5):
        parameters = tuple(stated_parameters([("quick_gelu", {"alpha": alpha})]))
        expected = x * torch.sigmoid(alpha * x)
        torch.testing.assert_close(activated("quick_gelu", x, parameters), expected)
        text = f"(torch.nn.functional.silu({alpha} * d) / {alpha})"
        assert torch_call("quick_gelu", "d", parameters) == text


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_limits_and_a_logistic_gelu_have_the_numbers_of_their_spec(tmp_path: Path, target: str) -> None:
    ops = "epilogue: {ops: [{clamp: {min: -0.5, max: 2}}, quick_gelu, {clamp_max: {max: 0.25}}]}\n"
    product = proven(tmp_path, spec_text(target, ("bf16", "bf16", "fp32"), ops))
    for line in (
        "CLAMP_MIN = gl.constexpr(-0.5)",
        "CLAMP_MAX = gl.constexpr(2.0)",
        "QUICK_GELU_ALPHA = gl.constexpr(1.702)",
        "CLAMP_MAX_MAX = gl.constexpr(0.25)",
    ):
        assert line in product.module


# --- GPUs

# NVIDIA H20 datasheet: a Hopper with 78 SMs, 148 TFLOP/s of bf16 and 4 TB/s.
H20 = Gpu(
    "h20", "H20", HOPPER, sm_count=78, l2_bytes=60 << 20, dram_bytes_per_second=4.0e12,
    dense_16bit_flops_per_second=148e12, sustained_hz=1.35e9, clusters_of_four=78 // 4,
    device=r"\bH20\b",
)  # fmt: skip


@pytest.fixture
def h20(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setitem(GPUS, H20.target, H20)
    return H20


def test_a_gpu_is_one_row(tmp_path: Path, h20: Gpu) -> None:
    product = proven(tmp_path, spec_text("h20", ("bf16", "bf16", "bf16")))
    assert product.plan.gpu is h20
    assert product.plan.gpu.clusters(2) == 39
    assert targets_of(90) == ("h100", "h200", "h20")
    assert gpu_of("NVIDIA H20") is h20
    assert ceilings_of("NVIDIA H20") is None  # nobody has measured one
    told = refusal(tmp_path, spec_text("h20", ("bf16", "bf16", "bf16")).replace("h20", "h30"))
    assert "target: expected h100, h200, b200 or h20, found" in told


def test_a_prediction_is_never_above_the_peak_of_its_gpu(tmp_path: Path, h20: Gpu) -> None:
    """An H20 has only a part of the tensor cores that its architecture says."""
    path = tmp_path / "slow.yaml"
    text = spec_text("h20", ("bf16", "bf16", "bf16")).replace(HOPPER_TILE, "")
    path.write_text(f"{text}\nbench: {{shapes: [[8192, 8192, 8192]]}}\n")
    plan = make(path).plan
    found = family_for(plan).estimate(plan, (8192, 8192, 8192))
    assert found.cycles / found.hz < found.seconds == pytest.approx(2 * 8192**3 / 148e12)


def test_an_unknown_gpu_is_no_known_one_and_is_told_so() -> None:
    for device in ("NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA A100-SXM4-80GB", ""):
        assert gpu_of(device) is None
        assert ceilings_of(device) is None
    known = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA B200": "b200"}
    assert {device: gpu.target for device in known if (gpu := gpu_of(device))} == known
    with pytest.raises(KeyError, match=r"no GPU is called 'h20'; there are h100, h200, b200; did you mean"):
        GPUS["h20"]


@pytest.fixture
def b300(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU of an architecture that none in the table has."""
    row = replace(
        GPUS["b200"], target="b300", name="B300", device=r"\bB300\b",
        architecture=replace(BLACKWELL, name="sm_103a", compute_capability=103),
    )  # fmt: skip
    monkeypatch.setitem(GPUS, row.target, row)
    return row


def test_a_gpu_of_a_new_architecture_is_one_row(tmp_path: Path, b300: Gpu) -> None:
    product = proven(tmp_path, spec_text("b300", ("e4m3", "e4m3", "bf16")))
    assert product.plan.architecture is b300.architecture
    assert "sm_103a" in product.module


@pytest.mark.parametrize(("compute_capability", "needed"), [(100, "10.0 (B200)"), (103, "10.3 (B300)")])
def test_a_kernel_of_any_architecture_says_which_gpus_run_it(
    compute_capability: int, needed: str, b300: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = next(known for known in architectures() if known.compute_capability == compute_capability)
    with pytest.raises(GemmgenError) as caught:
        require_gpu(found)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "no-gpu"
    assert diagnostic.message.endswith(needed)


def test_every_row_is_complete() -> None:
    for gpu in GPUS.values():
        assert all(getattr(gpu, field.name) for field in fields(gpu))
        assert gpu_of(f"NVIDIA {gpu.target.upper()}") is gpu


# --- walks

REVERSED_TEMPLATE = '''{% from "walks/by_turns.py.j2" import by_turns with context %}
@gluon.aggregate
class Tiles:
    """The work of a program, item by item: each is a whole tile, and the last one comes first."""

    args: Args

{{ by_turns("self.args.tiles_m * self.args.tiles_n") }}
    @gluon.jit
    def at(self, item):
        """Return the place of an item's tile in D."""
        return tile_origin(self.args, self.end() - 1 - item)
'''


def add_reversed_walk(folder: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the walk of persistent kernels that compute the last tile first."""
    row = Walk("walks/reversed", lambda plan: plan.persistent, walked="tiles of D, the last one first")
    monkeypatch.setitem(WALKS, "reversed", row)
    add_templates(folder / "templates", {"walks/reversed.py.j2": template}, monkeypatch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_a_walk_is_one_row_and_one_template(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = spec_text(target, ("bf16", "bf16", "bf16"), "schedule: {kind: persistent}\n")
    plain = made(tmp_path, text)
    add_reversed_walk(tmp_path, REVERSED_TEMPLATE, monkeypatch)
    product = proven(tmp_path, text)
    assert product.plan == plain.plan
    assert "tile_origin(self.args, self.end() - 1 - item)" in product.module


def test_a_walk_that_leaves_out_a_tile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator judges the new walk: one that never comes to the first tile leaves D there unwritten."""
    wrong = REVERSED_TEMPLATE.replace("self.end() - 1 - item", "gl.maximum(self.end() - 1 - item, 1)")
    add_reversed_walk(tmp_path, wrong, monkeypatch)
    product = made(tmp_path, spec_text("h100", ("bf16", "bf16", "bf16"), "schedule: {kind: persistent}\n"))
    simulation = simulate_product(product, (ring_launch(product.plan, ("lazy",)),))
    assert any(diagnostic.code == "wrong-numbers" for diagnostic in simulation.diagnostics)


def test_a_kernel_has_the_last_walk_that_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = made(tmp_path, spec_text("h100", ("bf16", "bf16", "bf16"), "schedule: {kind: persistent}\n")).plan
    assert walk_of(plan) is WALKS["static"]
    monkeypatch.delitem(WALKS, "static")
    with pytest.raises(LookupError, match="no row of WALKS holds for a persistent kernel"):
        walk_of(plan)
