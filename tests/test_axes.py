"""Axes of tensors: modules have the words that the launcher explains, and say what a caller passes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import cuda, on_a_fake_gpu
from modules import made, module_file, spec_file

import gemmgen_launch
from gemmgen.module import import_generated
from gemmgen.plan.axes import Axis, axes_in_memory, axes_of, extent_of, extents_in_memory, is_transposed

AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "h100_bf16": {"a": ("M", "K"), "b": ("K", "N"), "out": ("M", "N")},
    "b200_nvfp4": {
        "a": ("M", "K / 2"),
        "b": ("K / 2", "N"),
        "a_scale": ("M", "K blocks"),
        "b_scale": ("N", "K blocks"),
    },
    "h100_bf16_grouped": {"a": ("M", "K"), "b": ("groups", "K", "N"), "offs": ("groups",)},
    "h100_bf16_batched": {"a": ("groups", "M", "K"), "out": ("groups", "M", "N")},
    "h100_bf16_gated_saved": {"b": ("K", "2N"), "out": ("M", "N"), "saved": ("M", "2N")},
    "h100_e4m3_blockwise": {"a_scale": ("M", "K blocks"), "b_scale": ("N blocks", "K blocks")},
    "h100_bf16_broadcast_a": {"a": ("1", "M", "K"), "b": ("groups", "K", "N")},
}
"""Axes of tensors of modules, as a caller passes them."""


def module_of(stem: str) -> ModuleType:
    return import_generated(module_file(stem))


@pytest.mark.parametrize("stem", AXES)
def test_a_module_states_the_axes_that_a_caller_passes(stem: str) -> None:
    table = module_of(stem).ARGUMENTS
    assert {name: table[name]["axes"] for name in AXES[stem]} == AXES[stem]


def test_the_launcher_explains_every_axis() -> None:
    assert {*gemmgen_launch.AXES} == {*Axis}


@pytest.mark.parametrize("stem", AXES)
def test_a_transposed_tensor_lies_in_memory_with_its_last_axes_exchanged(stem: str) -> None:
    plan = made(spec_file(stem)).plan
    for argument in plan.arguments:
        axes, stored = (of(plan.problem, argument) for of in (axes_of, axes_in_memory))
        turned = axes[-2:] != stored[-2:]
        assert turned == is_transposed(plan.problem, argument)
        assert sorted(axes) == sorted(stored)


def test_extents_of_axes_are_counted_by_m_n_and_k() -> None:
    problem = made(spec_file("h100_e4m3_blockwise")).plan.problem
    found = {axis: extent_of(problem, axis).words for axis in (Axis.M, Axis.K_BLOCKS, Axis.N_BLOCKS)}
    assert found == {"M": "M", "K blocks": "ceil(K / 128)", "N blocks": "ceil(N / 128)"}
    with pytest.raises(KeyError):
        extent_of(problem, Axis.GROUPS)


def test_matrices_of_groups_are_one_matrix_in_memory() -> None:
    plan = made(spec_file("h100_bf16_grouped")).plan
    extents = extents_in_memory(plan.problem, plan.argument("b"))
    assert [extent.words for extent in extents] == ["G x N", "K"]


ROWS = {
    "of an earlier release": (torch.bfloat16, "MK", None, None),
    "with an axis of a later one": {"dtype": torch.bfloat16, "axes": ("M", "pages")},
}


@pytest.mark.parametrize("row", ROWS)
def test_a_table_of_another_form_is_refused(row: str) -> None:
    module = module_of("h100_bf16")
    table: dict[str, Any] = {**module.ARGUMENTS, "a": ROWS[row]}
    message = r"^ARGUMENTS has another form of a than gemmgen_launch\.py: generate both anew$"
    with pytest.raises(ValueError, match=message):
        gemmgen_launch.Host("another_form", table, module.TMA, module.COMPUTES, module.launch)


def test_an_error_names_the_axes_of_the_matrix_that_lies_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = module_of("h100_bf16_grouped")
    offs = cuda(2, dtype=torch.int32)
    message = r"^b must lie in memory as \[groups, N, K\], .*: pass weight\.mT of a weight \[groups, N, K\]$"
    with pytest.raises(ValueError, match=message):
        module.matmul(cuda(32, 64), cuda(2, 64, 128), offs=offs)
