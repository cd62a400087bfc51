"""Operators that return D and its scales under torch.compile and torch.export, for every number of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, on_a_fake_gpu
from modules import module_file
from torch import Tensor

from gemmgen.integrations import can_implement
from gemmgen.module import import_generated

DENSE, GATED, SCALED = "h100_bf16_quantized", "h100_bf16_gated_quantized", "h100_e4m3_blockwise_quantized"
EXPERTS, MASKED = "h100_e4m3_grouped_quantized", "h100_bf16_masked_quantized"
STEMS = (DENSE, GATED, SCALED, EXPERTS, MASKED)
N, K, GROUPS = 256, 256, 4
E4M3, FP32 = torch.float8_e4m3fn, torch.float32
any_torch: Any = torch


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what the tests before have compiled."""
    any_torch._dynamo.reset()
    yield
    any_torch._dynamo.reset()


def module_of(stem: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a committed module, which torch finds by its name."""
    module = import_generated(module_file(stem))
    monkeypatch.setitem(sys.modules, stem, module)
    return module


def operands(module: ModuleType, m: int) -> tuple[Tensor, ...]:
    """Return A with M rows, B as it is stored, and all further tensors as they lie, without memory."""
    extents = {"M": m, "N": N, "2N": 2 * N, "K": K, "groups": GROUPS}
    extents |= {"K blocks": K // 128, "N blocks": N // 128}
    found: list[Tensor] = []
    for name in module.COMPUTES["inputs"]:
        dtype, axes = module.ARGUMENTS[name]["dtype"], module.ARGUMENTS[name]["axes"]
        shape = [extents[axis] for axis in axes]
        if name == "b":
            shape = [*shape[:-2], shape[-1], shape[-2]]
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        found.append(module.arrange_scales(name, tensor) if "K blocks" in axes else tensor)
    return tuple(found)


def layer_of(module: ModuleType) -> torch.nn.Module:
    """Return a layer that calls a module with the weights as they are stored."""
    names = module.COMPUTES["inputs"][2:]

    class Layer(torch.nn.Module):
        def forward(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            a, b, *others = tensors
            return module.matmul(a, b.mT, **dict(zip(names, others, strict=True)))

    return Layer()


def assert_shapes(outputs: Any, stem: str, m: int) -> None:
    """Check the extents of D and of its scales, whose blocks begin at multiples of 16 bytes."""
    d, scales = outputs
    of = (GROUPS,) * (stem == MASKED)
    pitch = -(-m // 4) * 4
    assert (d.dtype, tuple(d.shape)) == (E4M3, (*of, m, N))
    assert (scales.dtype, tuple(scales.shape)) == (FP32, (*of, m, N // 128))
    assert tuple(scales.stride())[-2:] == (1, pitch)
    if of:
        assert scales.stride(0) == N // 128 * pitch


@pytest.mark.parametrize("stem", STEMS)
def test_one_compiled_graph_has_every_number_of_rows(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(stem, monkeypatch)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    layer = any_torch.compile(layer_of(module), backend=backend, fullgraph=True, dynamic=True)
    for m in (30, 33, 64, 4096):
        assert_shapes(layer(operands(module, m)), stem, m)
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if "gemmgen" in str(node.target)]
    assert len(called) == 1
    assert stem in called[0]


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
@pytest.mark.parametrize("stem", STEMS)
def test_an_exported_program_has_every_number_of_rows(
    stem: str, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M is rounded up to a multiple of 4 for the scales, and no guard of that restricts it."""
    module = module_of(stem, monkeypatch)
    rows = any_torch.export.Dim("rows", min=2, max=2**20)
    tables = [module.ARGUMENTS[name]["axes"] for name in module.COMPUTES["inputs"]]
    shapes = tuple({axes.index("M"): rows} if "M" in axes else None for axes in tables)
    program = any_torch.export.export(
        layer_of(module), (operands(module, 30),), dynamic_shapes=(shapes,), strict=strict
    )
    for m in (2, 3, 64, 2**20):
        assert_shapes(program.module()(operands(module, m)), stem, m)
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count(f"gemmgen.{stem}.default") == 1


def test_rows_of_more_dimensions_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(DENSE, monkeypatch)
    _, b = operands(module, 2)
    batch, rows = (any_torch.export.Dim(name, min=2, max=512) for name in ("batch", "rows"))
    a = torch.empty(3, 30, K, dtype=torch.bfloat16, device="meta")
    shapes = (({0: batch, 1: rows}, None),)
    program = any_torch.export.export(layer_of(module), ((a, b),), dynamic_shapes=shapes)
    d, scales = program.module()((torch.empty(5, 7, K, dtype=torch.bfloat16, device="meta"), b))
    assert (tuple(d.shape), tuple(scales.shape)) == ((5, 7, N), (5, 7, N // 128))
    assert tuple(scales.stride()) == (7, 1, 36)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # in torch, which copies a specification
def test_functional_graphs_return_the_scales_that_the_operator_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = module_of(DENSE, monkeypatch)
    rows = any_torch.export.Dim("rows", min=2, max=4096)
    shapes = (({0: rows}, None),)
    program = any_torch.export.export(layer_of(module), (operands(module, 30),), dynamic_shapes=shapes)
    functional = program.run_decompositions()
    assert_shapes(functional.module()(operands(module, 71)), DENSE, 71)


def test_can_implement_asks_for_no_tensor_that_matmul_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = module_of(DENSE, monkeypatch)
    a, b = (torch.zeros(shape, dtype=torch.bfloat16).as_subclass(Cuda) for shape in ((40, K), (N, K)))
    assert can_implement(module, a, b.T) == (True, "")
    scales = module.new_scales(a, b.T)
    assert can_implement(module, a, b.T, out_scale=scales) == (True, "")
    can, reason = can_implement(module, a, b.T, out_scale=scales[:8])
    assert not can
    assert reason.startswith("out_scale must have shape [40, 2], found [8, 2]")
