"""The example of a layer of experts: its parts beside loops over tokens, its kernels, and its record."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, on_a_fake_gpu
from fake_triton import on_a_fake_driver
from hopper import hopper
from modules import ROOT, made
from simulated import Simulated
from torch import Tensor

from gemmgen.lower import lower
from gemmgen.module import import_generated
from gemmgen.problem import Groups
from gemmgen.product import write

EXAMPLE = ROOT / "examples" / "moe"
SPECS = sorted((EXAMPLE / "specs").glob("*.yaml"))
TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 23, 6, 2, 136, 72
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def example_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))  # pyright: ignore[reportUnknownMemberType]
    for name in ("experts", "graphs", "layer"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def experts() -> Any:
    return import_module("experts")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example's modules, with the launcher."""
    folder = tmp_path_factory.mktemp("moe")
    for spec in SPECS:
        write(made(spec), folder)
    return folder


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return x and logits: expert 1 gets no token, and expert 2 gets each token."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(TOKENS, EXPERTS, generator=generator)
    logits[:, 1], logits[:, 2] = -9, 9
    return torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16(), logits


def weights(experts: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    gate_up = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, generator=generator) / HIDDEN**0.5
    down = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=generator) / INTERMEDIATE**0.5
    return experts.Weights(gate_up.bfloat16(), down.bfloat16())


def by_token(x: Tensor, logits: Tensor, of: Any) -> Tensor:
    """Return the layer's output in fp64, token by token, without anything of the example."""
    rows: list[Tensor] = []
    for token in range(len(x)):
        shares = logits[token].double().exp()
        chosen = sorted(range(len(shares)), key=lambda number: -float(shares[number]))[:TOP_K]
        row = torch.zeros(HIDDEN, dtype=torch.float64)
        for number in chosen:
            products = of.gate_up[number].double() @ x[token].double()
            gate, up = products[:INTERMEDIATE], products[INTERMEDIATE:]
            h = gate / (1 + (-gate).exp()) * up
            row += of.down[number].double() @ h * shares[number] / shares[chosen].sum()
        rows.append(row)
    return torch.stack(rows)


SORTED, INDEXED = ("up", "down"), ("up_gather", "down_scatter")


def simulated_kernels(experts: Any, built: Path, regime: str, parts: tuple[str, str] = SORTED) -> Any:
    found = (
        Simulated(made(EXAMPLE / "specs" / f"{part}_{regime}.yaml"), built / f"{part}_{regime}.py")
        for part in parts
    )
    return experts.Kernels(*found)


def errors(d: Tensor, expected: Tensor) -> Any:
    return import_module("layer").Errors.of(d, expected.float())


# --- the parts of the layer


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_pairs_are_sorted_by_expert_and_found_again_by_token(tokens: int, experts: Any) -> None:
    generator = torch.Generator().manual_seed(tokens)
    weight, expert = experts.route(torch.randn(tokens, EXPERTS, generator=generator), TOP_K)
    pairs = experts.sort_by_expert(weight, expert, EXPERTS)
    ends = pairs.offs.tolist()
    assert (pairs.offs.dtype, pairs.weight.dtype) == (torch.int32, torch.float32)
    for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        assert pairs.token[first:end].tolist() == [t for t in range(tokens) if number in expert[t]]
    assert ends[-1] == tokens * TOP_K
    assert torch.equal(pairs.token[pairs.place], torch.arange(tokens)[:, None].expand(-1, TOP_K))
    assert torch.equal(pairs.weight[pairs.place], weight)


def test_the_weights_of_a_token_add_up_to_one_and_choose_the_most_likely_experts(experts: Any) -> None:
    weight, expert = experts.route(torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 2.0]]), 2)
    assert expert.tolist() == [[1, 2], [0, 2]]
    share = 1 / (1 + math.exp(-1))
    assert torch.allclose(weight, torch.tensor([[share, 1 - share]] * 2))


def test_the_reference_is_a_loop_over_tokens(experts: Any) -> None:
    x, logits = inputs()
    of = weights(experts)
    assert torch.allclose(
        experts.reference(x, logits, of, TOP_K).double(), by_token(x, logits, of), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("regime", ["decode", "prefill"])
def test_the_layer_of_generated_kernels_is_a_loop_over_tokens(
    regime: str, experts: Any, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "MOST_DECODE_TOKENS", TOKENS if regime == "decode" else TOKENS - 1)
    x, logits = inputs()
    of = weights(experts)
    regimes = {"decode": None, "prefill": None, regime: simulated_kernels(experts, built, regime)}
    d = experts.layer(x, logits, experts.GeneratedMlp(of, **regimes), TOP_K)
    assert d.dtype == torch.bfloat16
    assert errors(d, by_token(x, logits, of)).allowed


@pytest.mark.parametrize("regime", ["decode", "prefill"])
def test_the_layer_of_kernels_with_an_index_is_a_loop_over_tokens_and_has_the_bits_of_the_other(
    regime: str, experts: Any, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "MOST_DECODE_TOKENS", TOKENS if regime == "decode" else TOKENS - 1)
    x, logits = inputs()
    of = weights(experts)
    none = {"decode": None, "prefill": None}
    by_index = experts.IndexedMlp(of, **none | {regime: simulated_kernels(experts, built, regime, INDEXED)})
    d = experts.layer_by_index(x, logits, by_index, TOP_K)
    assert errors(d, by_token(x, logits, of)).allowed
    of_sorted = experts.GeneratedMlp(of, **none | {regime: simulated_kernels(experts, built, regime)})
    assert torch.equal(d, experts.layer(x, logits, of_sorted, TOP_K))


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_an_index_has_the_token_of_each_sorted_pair_and_its_place_in_the_order_of_tokens(
    tokens: int, experts: Any
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    weight, expert = experts.route(torch.randn(tokens, EXPERTS, generator=generator), TOP_K)
    pairs = experts.sort_by_expert(weight, expert, EXPERTS)
    index = experts.index_by_expert(weight, expert, EXPERTS)
    assert (index.token.dtype, index.place.dtype) == (torch.int32, torch.int32)
    assert torch.equal(index.token.long(), pairs.token)
    assert torch.equal(index.offs, pairs.offs)
    assert torch.equal(index.weight, pairs.weight)
    assert sorted(index.place.tolist()) == list(range(tokens * TOP_K))
    rows = torch.randn(tokens * TOP_K, 3, generator=generator)
    stored = torch.empty_like(rows)
    stored[index.place.long()] = rows
    assert torch.equal(experts.combine_neighbours(stored, TOP_K), experts.combine(rows, pairs))


def test_the_layer_of_torchs_grouped_mm_is_a_loop_over_tokens(experts: Any) -> None:
    x, logits = inputs()
    of = weights(experts)
    d = experts.layer(x, logits, experts.TorchMlp(of), TOP_K)
    assert errors(d, by_token(x, logits, of)).allowed


def test_a_wrong_element_a_wrong_factor_and_a_nan_are_errors() -> None:
    expected = torch.randn(500, 64, generator=torch.Generator().manual_seed(2))
    d = expected.clone()
    assert errors(d, expected).allowed
    d[3, 7] += 0.2
    found = errors(d, expected)
    assert (found.largest > 0.1, found.norm < 0.01, found.allowed) == (True, True, False)
    found = errors(1.02 * expected, expected)
    assert (found.largest < 0.1, found.norm > 0.01, found.allowed) == (True, True, False)
    d[0, 0] = math.nan
    assert not errors(d, expected).allowed


# --- the kernels


@pytest.mark.sample(2)
@every_spec
def test_the_compiler_makes_what_the_plan_of_the_example_says(spec: Path) -> None:
    product = made(spec)
    resources = lower(product.module, product.plan, path=spec.as_posix(), stem=spec.stem).resources
    assert resources.smem_bytes == product.plan.smem_bytes
    assert resources.spilled_bytes == 0
    assert not resources.ptxas_notes


def test_few_rows_have_swap_ab_unless_the_kernel_has_a_gate() -> None:
    plans = {spec.stem: hopper(made(spec).plan) for spec in SPECS}
    assert [stem for stem, plan in plans.items() if plan.swap_ab] == [
        "down_decode",
        "down_scatter_decode",
    ]
    for stem, plan in plans.items():
        gathers, scatters = "gather" in stem, "scatter" in stem
        assert plan.problem.groups == Groups("m_offsets", 128, a_rows=gathers, d_rows=scatters)


def test_kernels_with_an_index_have_the_tiles_of_the_kernels_of_sorted_rows() -> None:
    plans = {spec.stem: hopper(made(spec).plan) for spec in SPECS}
    for with_index, without in zip(INDEXED, SORTED, strict=True):
        for regime in ("decode", "prefill"):
            plan, other = plans[f"{with_index}_{regime}"], plans[f"{without}_{regime}"]
            assert (plan.cta_tile_m, plan.cta_tile_n) == (other.cta_tile_m, other.cta_tile_n)


@pytest.mark.parametrize("parts", [SORTED, INDEXED], ids=["sorted", "indexed"])
@pytest.mark.parametrize("regime", ["decode", "prefill"])
def test_the_functions_of_the_modules_take_the_tensors_of_the_layer(
    regime: str, parts: tuple[str, str], experts: Any, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {part: import_generated(built / f"{part}_{regime}.py") for part in parts}
    on_a_fake_gpu(monkeypatch)
    drivers = {part: on_a_fake_driver(module, monkeypatch) for part, module in modules.items()}
    for driver in drivers.values():
        driver.make_context(0)
    kernels = experts.Kernels(*(module.matmul for module in modules.values()))
    of = weights(experts)
    on_the_gpu = experts.Weights(on_gpu(of.gate_up), on_gpu(of.down))
    x, logits = inputs()
    of_pairs = (*experts.route(logits, TOP_K), EXPERTS)
    if parts == SORTED:
        found = experts.sort_by_expert(*of_pairs)
        pairs = experts.Pairs(*map(on_gpu, (found.token, found.weight, found.place, found.offs)))
        d = experts.GeneratedMlp(on_the_gpu, kernels, kernels)(on_gpu(experts.gather(x, found)), pairs)
    else:
        found = experts.index_by_expert(*of_pairs)
        pairs = experts.IndexedPairs(*map(on_gpu, (found.token, found.place, found.weight, found.offs)))
        d = experts.IndexedMlp(on_the_gpu, kernels, kernels)(on_gpu(x), pairs)
    assert d.shape == (TOKENS * TOP_K, HIDDEN)
    assert [len(driver.jit) for driver in drivers.values()] == [1, 1]


def on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Cuda)


def test_the_example_imports_torch_and_generated_modules_alone() -> None:
    imported: set[str] = set()
    for path in EXAMPLE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "experts", "graphs"}


# --- the record


def test_a_point_of_the_record_has_the_time_of_each_part(
    experts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = import_module("layer")
    monkeypatch.setattr(layer, "EXPERTS", EXPERTS)
    monkeypatch.setattr(layer, "TOP_K", TOP_K)
    seeds: list[int] = []

    def drawn(_: int, seed: int) -> Any:
        seeds.append(seed)
        return layer.Inputs(*inputs(seed))

    def microseconds(calls: dict[str, list[Callable[[], object]]]) -> dict[str, float]:
        assert {len(each) for each in calls.values()} == {5}
        for call in (call for each in calls.values() for call in each):
            assert call() is not None
        return {name: 3.0 if name.startswith("torch") else 2.0 for name in calls}

    monkeypatch.setattr(layer.Inputs, "drawn", drawn)
    monkeypatch.setattr(layer, "microseconds", microseconds)
    of = weights(experts)
    ours = experts.GeneratedMlp(of, experts.Kernels(up_in_torch, down_in_torch), None)
    by_index = experts.IndexedMlp(of, experts.Kernels(up_by_index, down_by_index), None)
    versions = layer.Versions(ours, by_index, experts.TorchMlp(of))
    found = json.loads(json.dumps(layer.point(TOKENS, versions)))
    assert seeds == [0, 1, 2, 3, 4]
    assert (found["tokens"], found["kernels"], found["mlp_ratio"], found["layer_ratio"]) == (
        TOKENS,
        "decode",
        1.5,
        1.5,
    )
    assert {version: set(of) for version, of in found["us"].items()} == {
        "shared": {"route", "sort", "gather", "combine"},
        "generated": {"up", "down", "mlp", "layer"},
        "indexed": {"index", "up", "down", "combine", "mlp", "layer"},
        "torch": {"up", "activation", "down", "weigh", "mlp", "layer"},
    }


def up_in_torch(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
    gate, up = torch.nn.functional.grouped_mm(a, b, offs=offs).chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def down_in_torch(a: Tensor, b: Tensor, *, row_scale: Tensor, offs: Tensor) -> Tensor:
    return torch.nn.functional.grouped_mm(a, b, offs=offs) * row_scale[:, None]


def up_by_index(a: Tensor, b: Tensor, *, offs: Tensor, a_rows: Tensor) -> Tensor:
    return up_in_torch(a[a_rows.long()], b, offs=offs)


def down_by_index(a: Tensor, b: Tensor, *, row_scale: Tensor, offs: Tensor, d_rows: Tensor) -> Tensor:
    d = down_in_torch(a, b, row_scale=row_scale, offs=offs)
    return torch.empty_like(d).index_copy(0, d_rows.long(), d)


def test_the_numbers_of_three_versions_are_checked_and_wrong_ones_are_refused(
    experts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = import_module("layer")
    monkeypatch.setattr(layer, "EXPERTS", EXPERTS)
    monkeypatch.setattr(layer, "TOP_K", TOP_K)
    monkeypatch.setattr(layer, "CHECKED_TOKENS", (TOKENS,))

    def drawn(_: int, seed: int) -> Any:
        return layer.Inputs(*inputs(seed))

    def in_sorted_order(a: Tensor, b: Tensor, *, d_rows: Tensor, **named: Tensor) -> Tensor:
        del d_rows
        return down_in_torch(a, b, **named)

    monkeypatch.setattr(layer.Inputs, "drawn", drawn)
    of = weights(experts)
    ours = experts.GeneratedMlp(of, experts.Kernels(up_in_torch, down_in_torch), None)

    def of_down(down: Callable[..., Tensor]) -> Any:
        kernels = experts.Kernels(up_by_index, down)
        return layer.Versions(ours, experts.IndexedMlp(of, kernels, None), experts.TorchMlp(of))

    (found,) = layer.check(of_down(down_by_index)).values()
    assert set(found) == {"generated", "indexed", "torch", "generated - torch", "indexed - torch"}
    with pytest.raises(SystemExit, match=f"{TOKENS} tokens: an error is too large"):
        layer.check(of_down(in_sorted_order))


def test_the_program_without_a_gpu_says_that_it_needs_one(tmp_path: Path) -> None:
    ran = program(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (ran.returncode, ran.stderr) == (1, "needs a Hopper GPU\n")


@pytest.mark.gpu
def test_the_numbers_of_the_example_are_right_on_a_gpu(built: Path) -> None:
    ran = program(built)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(" tokens  errors: ") == 5


def program(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the example's check with the modules of a folder."""
    command = [sys.executable, str(EXAMPLE / "layer.py"), str(folder)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300
    )
