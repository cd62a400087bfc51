"""integrations.torchtitan: experts of torchtitan by its converters, with kernels of this CPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from typing import Any, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from modules import ROOT
from torch import Tensor, nn

from gemmgen.integrations.torchtitan import GroupedExpertsConverter, experts_class

any_torch: Any = cast(Any, torch)
Experts: Any = import_module("torchtitan.models.common.moe").GroupedExperts
NAME, FEW = "a_grouped_kernel_of_this_cpu", "a_kernel_for_few_rows"
SIZES = {"dim": 64, "hidden_dim": 32, "num_experts": 4}
calls: list[str] = []
"""The names of the kernels of this CPU that were called."""


def kernel(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return a kernel of groups, which torch computes."""

    def matmul(a: Tensor, b: Tensor, *, offs: Tensor, out: Tensor | None = None) -> Tensor:
        if a.dtype != dtype:
            raise TypeError(f"a must be a tensor of {dtype}, found {a.dtype}")
        calls.append(name)
        return any_torch._grouped_mm(a, b, offs=offs)

    return kernel_on_the_cpu(name, matmul, "offs", epilogue=())


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    for name in (NAME, FEW):
        monkeypatch.setitem(sys.modules, name, kernel(name))


def converted(config: Any, **options: Any) -> Any:
    return GroupedExpertsConverter(GroupedExpertsConverter.Config(kernels=[NAME], **options)).convert(config)


def built(config: Any) -> nn.Module:
    any_torch.manual_seed(0)
    module: nn.Module = config.build()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module


def test_experts_are_computed_by_the_kernels_and_have_the_same_gradients() -> None:
    ours, theirs = built(converted(Experts.Config(**SIZES))), built(Experts.Config(**SIZES))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    results: list[tuple[Tensor, ...]] = []
    for module in (ours, theirs):
        x = torch.linspace(-1, 1, 20 * 64).view(20, 64).requires_grad_()
        y = module(x, torch.tensor([5, 0, 10, 5]))
        y.square().sum().backward()
        results.append((y, x.grad, *(parameter.grad for parameter in module.parameters())))  # pyright: ignore
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)
    assert calls == [NAME] * 3
    assert cast(Any, ours).grouped_mm.reason == ""


def test_few_rows_have_kernels_of_their_own() -> None:
    module = built(converted(Experts.Config(**SIZES), few_rows={2: FEW}))
    for rows in (8, 9):
        module(torch.ones(rows, 64), torch.tensor([rows, 0, 0, 0]))
    assert calls == [FEW] * 3 + [NAME] * 3


def test_torch_computes_what_the_kernels_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, kernel(NAME, torch.float16))
    module = built(converted(Experts.Config(**SIZES)))
    found = module(torch.ones(8, 64), torch.tensor([2, 2, 2, 2]))
    torch.testing.assert_close(
        found, built(Experts.Config(**SIZES))(torch.ones(8, 64), torch.tensor([2, 2, 2, 2]))
    )
    assert calls == []
    assert (
        cast(Any, module).grouped_mm.reason
        == f"{NAME}: a must be a tensor of torch.float16, found torch.bfloat16"
    )


def test_a_converted_configuration_is_plain_data() -> None:
    config = converted(Experts.Config(**SIZES), few_rows={2: FEW})
    assert asdict(config) == {**asdict(Experts.Config(**SIZES)), "kernels": [NAME], "few_rows": {2: FEW}}
    assert cast(Any, type(config))._owner is experts_class(Experts)


def test_all_experts_of_a_model_are_converted() -> None:
    """As torchtitan's own files of configurations name converters."""
    registry: Any = import_module("torchtitan.models.deepseek_v3").model_registry
    spec = registry("debugmodel", converters=[GroupedExpertsConverter.Config(kernels=[NAME])])
    found = [config for _, config, *_ in spec.model.traverse(Experts.Config)]
    assert len(found) > 1
    assert all(config.kernels == [NAME] for config in found)


def test_a_second_converter_takes_the_place_of_the_first() -> None:
    first = converted(Experts.Config(**SIZES), few_rows={2: FEW})
    second = converted(first)
    assert (type(second), second.few_rows) == (type(first), {})


def test_a_name_alone_is_refused() -> None:
    config = GroupedExpertsConverter.Config(kernels=cast(Any, NAME))
    with pytest.raises(ValueError, match=r"^kernels must be a list of names of modules, found 'a_grouped"):
        config.build()


def test_a_module_that_cannot_be_imported_is_named_before_the_model_is_built() -> None:
    with pytest.raises(ImportError, match="no_such_module"):
        GroupedExpertsConverter(GroupedExpertsConverter.Config(kernels=["no_such_module"]))


def test_without_torchtitan_one_sentence_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['torchtitan'] = None; import gemmgen.integrations.torchtitan"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    said = ran.stderr.splitlines()[-1]
    assert said.startswith("ImportError: torchtitan 0.3 or later is needed for its experts (")
    assert said.endswith("): run `pip install '.[torchtitan]'` in a checkout of gemmgen")
