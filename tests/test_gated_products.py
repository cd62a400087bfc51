"""Libraries and launchers in C of gated kernels: D has half of the columns of B, dense and in groups."""

from __future__ import annotations

import importlib
import math
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_driver import assert_compiles, assert_in_order, called, exported
from fake_gpu import always
from made_library import library_of, made_library
from modules import EVERY_SPEC, made, spec_file
from simulated import on_a_gpu, signs, simulated_file
from torch import Tensor

from gemmgen.errors import GemmgenError
from gemmgen.features.exporting import refusals
from gemmgen.library import exchange, package
from gemmgen.planner import family_for
from gemmgen.product import make

DENSE, GROUPED = "h100_bf16_gated", "h100_bf16_grouped_gated"
BY_COLUMNS, IN_TURN, WITH_BIAS = "h100_bf16_gated_nn", "h100_bf16_gated_interleaved", "h100_bf16_gptoss_gated"


def is_plain(path: Path) -> bool:
    """Return True if a gate reads plain operands, and leaves one D without scales."""
    problem = made(path).plan.problem
    beside = problem.saves or problem.d_scale or problem.d_blocks > 1
    return problem.gated and not (beside or problem.scales_sums)


EXPORTED = sorted(
    path.stem
    for path in EVERY_SPEC
    if "gated" in path.stem and "gather" not in path.stem and path.exists() and is_plain(path)
)
BF16, INT = torch.bfloat16, torch.int32
CARD = "NVIDIA H200"


# --- libraries


def imported(stem: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the library of one committed spec."""
    return made_library(f"only_{stem}", [spec_file(stem)], folder, monkeypatch)


@pytest.mark.parametrize("stem", [DENSE, GROUPED])
def test_a_library_predicts_what_the_planner_does_for_the_columns_of_d(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(spec_file(stem)).plan
    forecast = imported(stem, tmp_path, monkeypatch).library.table.forecast(is_measured=False)
    draw = random.Random(11)
    for _ in range(20):
        m, n, k = (round(2 ** draw.uniform(*ends)) for ends in ((0, 14), (4, 12), (5, 13)))
        estimate = family_for(plan).estimate(plan, (m, n, k))
        expected = max(estimate.cycles / estimate.hz, estimate.dram_seconds)
        assert math.isclose(forecast.predicted(stem, (m, n, k)), expected, rel_tol=1e-12)


def test_two_kernels_are_chosen_between_by_the_columns_of_d(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of B [K, 2N] asks for the kernel of N columns."""
    package.write(library_of("two_gates", [spec_file(DENSE), spec_file("h100_bf16_gated_tiled")]), tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    two = importlib.import_module("two_gates")
    asked: list[tuple[int, ...]] = []

    def choose(*sizes: int, gpu: str | None) -> Any:
        asked.append(sizes)
        raise StopIteration

    few, many = two.choose(16, 1024, 4096).kernel, two.choose(8192, 6144, 4096).kernel
    assert (few, many) == ("h100_bf16_gated_tiled", DENSE)
    monkeypatch.setattr(two.library.table, "choose", choose)
    with pytest.raises(StopIteration):
        two.matmul(signs(16, 64), signs(48, 64).T)
    assert asked == [(16, 24, 64)]


@pytest.mark.parametrize("stem", [DENSE, GROUPED])
def test_a_library_computes_a_gate_by_the_kernel_that_it_chooses(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator executes the kernel that `matmul` launches on a GPU that does not exist."""
    gated = imported(stem, tmp_path, monkeypatch)
    file = tmp_path / f"only_{stem}" / f"{stem}.py"

    def host_of(name: str) -> Any:
        assert name == stem
        return simulated_file(file, make(spec_file(stem)), monkeypatch).call

    monkeypatch.setattr(gated.library, "host_of", host_of)
    monkeypatch.setattr(torch.cuda, "get_device_name", always(CARD))
    rows, n, k = [30, 0, 41], 40, 72
    a = signs(sum(rows), k)
    if stem == GROUPED:
        weight, offs = signs(len(rows), 2 * n, k), torch.tensor(rows, dtype=INT).cumsum(0, dtype=INT)
        found = gated.matmul(on_a_gpu(a), on_a_gpu(weight.mT), offs=on_a_gpu(offs))
        pairs = zip(torch.split(a, rows), weight, strict=True)
        sums = torch.cat([part.double() @ each.double().T for part, each in pairs])
    else:
        weight = signs(2 * n, k)
        found = gated.matmul(on_a_gpu(a), on_a_gpu(weight.T))
        sums = a.double() @ weight.double().T
    gate, up = sums.chunk(2, -1)
    wanted = torch.nn.functional.silu(gate) * up
    assert found.shape == (sum(rows), n)
    torch.testing.assert_close(found.as_subclass(Tensor).double(), wanted, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("stem", EXPORTED)
def test_a_warmup_has_a_b_of_all_columns(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(256, 512, 1024), (8, 512, 1024)]
    imported(stem, tmp_path, monkeypatch).warmup(shapes, device="meta")  # launches nothing


@pytest.mark.parametrize(
    ("stem", "extents", "why"),
    [
        (DENSE, ((64, 64), (64, 48)), ""),
        (DENSE, ((64, 64), (64, 47)), "b must have 2 N columns, N for each sum of an element of D, found 47"),
        (DENSE, ((64, 60), (60, 48)), "K must be a multiple of 8, as rows of a and b have whole"),
        (BY_COLUMNS, ((64, 64), (64, 48)), ""),
        (BY_COLUMNS, ((64, 64), (64, 40)), "N must be a multiple of 8, found 20"),
        (BY_COLUMNS, ((64, 64), (64, 36)), "2N must be a multiple of 8, as rows of b have whole"),
        (GROUPED, ((64, 64), (3, 64, 48)), ""),
        (GROUPED, ((64, 64), (3, 64, 47)), "b must have 2 N columns"),
    ],
)
def test_a_library_knows_which_shapes_its_kernels_take(
    stem: str,
    extents: tuple[tuple[int, ...], tuple[int, ...]],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    implements, said = imported(stem, tmp_path, monkeypatch).can_implement(*extents)
    assert implements is not bool(why)
    assert said.startswith(why or stem), said


@pytest.mark.parametrize("stem", [DENSE, GROUPED])
def test_the_operator_of_a_library_returns_half_of_the_columns_and_counts_all(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = imported(stem, tmp_path, monkeypatch)
    groups = (3,) if stem == GROUPED else ()
    a = torch.empty(40, 64, dtype=BF16, device="meta")
    b = torch.empty(*groups, 64, 72, dtype=BF16, device="meta")
    counts = [torch.empty(3, dtype=INT, device="meta")] * len(groups)
    d = gated.OPERATOR(a, b, *counts)
    assert (tuple(d.shape), d.stride(0)) == ((40, 36), 40)
    count_flops = importlib.import_module(f"{gated.__name__}.gemmgen_library").count_flops
    assert count_flops(a.shape, b.shape) == 2 * 40 * 64 * 72


def test_tables_for_vllm_are_refused_for_gates(tmp_path: Path) -> None:
    with pytest.raises(GemmgenError, match="its kernels compute a gate, and these tables are for plain"):
        exchange.write_configs(library_of("gates", [spec_file(DENSE)]), tmp_path)


def test_a_docstring_of_a_library_has_the_extents_of_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "A[M, K] @ B[G, K, 2N]" in str(imported(GROUPED, tmp_path, monkeypatch).__doc__)


# --- launchers in C


@pytest.mark.parametrize("stem", EXPORTED)
def test_a_compiler_takes_every_launcher_of_a_gate(stem: str, tmp_path: Path) -> None:
    assert not [*refusals(made(spec_file(stem)).plan)]
    assert_compiles(stem, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("stem", [BY_COLUMNS, IN_TURN, WITH_BIAS])
def test_a_launcher_passes_what_the_compiled_gate_takes(stem: str) -> None:
    """`export` compares parameters, boxes and swizzles with the compiler's, and raises if one differs."""
    assert (exported(stem) / f"{stem}.cubin").read_bytes().startswith(b"\x7fELF")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("stem", "parameters", "of_groups", "of_b"),
    [(DENSE, "mmm", "", "32x24"), (GROUPED, "mmpb", ", .groups = 3, .offs = 4", "96x24")],
)
def test_a_launcher_of_a_gate_describes_a_b_of_twice_as_many_columns(
    stem: str, parameters: str, of_groups: str, of_b: str, tmp_path: Path
) -> None:
    arguments = ".m = 20, .n = 16, .k = 24, .a = {1024, 32}, .b = {2048, 32}, .d = {65536, 24}"
    found = called(stem, f"{arguments}{of_groups}", tmp_path, parameters=parameters)
    assert (found.returncode, found.said) == (0, ["m = right.m: 0 "])
    # A box has the columns of one accumulator: half of a tile of B, which has 256 columns.
    b = f"cuTensorMapEncodeTiled type 9 at 2048 extents {of_b} stride 64 box 128x64"
    assert_in_order([b, "  matrix 20x24 strides 32", f"  matrix {of_b} strides 32"], found.launch)


def test_a_b_of_too_many_columns_is_refused_in_words(tmp_path: Path) -> None:
    arguments = ".m = 4, .n = 16, .k = 24, .a = {256, 24}, .b = {256, 32}, .d = {256, 16}"
    changes = ("n = 16", "n = 12", "n = 1073741824", "b.row_stride = 24")
    assert called(BY_COLUMNS, arguments, tmp_path, changes).said == [
        "n = 16: 0 ",
        "n = 12: 6 d must have rows of whole 16-byte units, found 12 columns",
        "n = 1073741824: 6 2 x n must be from 0 to 2147483392, found 2147483648",
        "b.row_stride = 24: 8 b must not overlap itself, found rows of 32, 24 apart",
    ]
