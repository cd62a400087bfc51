"""tune of groups: the kernels that are tried, a run with kernels of this CPU, and a library of its table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_gpu import FakeMachine, NamedMachine
from torch import Tensor

from gemmgen import library
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.result_log import Rounds
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.features.checking import sides_of
from gemmgen.hardware import HOPPER, Architecture
from gemmgen.library.assemble import assemble
from gemmgen.library.sources import read
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import reference
from gemmgen.problem import Request, Shape
from gemmgen.problem.groups import Groups
from gemmgen.product import make
from gemmgen.spec import SpecFile, load_spec
from gemmgen.tune import read_table
from gemmgen.tune.candidates import TuningTarget, first_candidates, neighbours
from gemmgen.tune.options import TuningMachinery, TuningOptions
from gemmgen.tune.outcome import Outcome
from gemmgen.tune.tuning import tune

OPERANDS = "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
OPEN = f"title: t\ntarget: h200\n{OPERANDS}\ngroups: {{kind: m_offsets, count: 128}}\n"
FEW_OPEN = f"""\
title: t
target: h200
{OPERANDS}
groups: {{kind: m_offsets, count: 4}}
mma: {{swap_ab: true}}
tile: {{n: 64, k: 64}}
warp_specialization: {{kind: ping_pong}}
buffering: {{outstanding_mmas: 1, stages: 4}}
search: {{tile.m: [8, 16, 32]}}
"""
"""A spec that leaves the rows of a tile open."""
SHAPE: Shape = (24, 64, 128)
PROTOCOL = Rounds(graph_seconds=1e-4, warm_up_seconds=1.0, settle_seconds=0.1)


# --- what is tried


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mean", "few"), [(1, True), (512, False)])
def test_the_planners_first_kernels_of_the_rows_of_a_group_are_tried(
    mean: int, few: bool, tmp_path: Path
) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(OPEN)
    tuned = TuningTarget(load_spec(path), (128 * mean, 2048, 768))
    found = first_candidates(tuned, 4)
    plans = [tuned.plan(each.pins) for each in found]
    assert len({each.kernel for each in found}) == len(found) >= 6
    assert {plan.problem.groups if plan else None for plan in plans} == {Groups("m_offsets", 128)}
    assert {each.pins.get("mma.swap_ab", False) for each in found[:4]} == {few}
    assert all(plan and plan.problem == tuned.source.problem for plan in plans)
    rows = {each.pins["tile.m"] for each in (*found, *neighbours(tuned, found[0].pins))}
    assert len(rows) >= 2


# --- a run on a GPU that there is not


class Kernels:
    """Right kernels of groups, whose time depends on the rows of a tile; 16 rows are best."""

    def __init__(self) -> None:
        self.machine = NamedMachine()
        self.sources: list[SpecFile] = []

    def machine_on(self, device: int, architecture: Architecture) -> FakeMachine:
        assert architecture == HOPPER
        return self.machine

    def imported(self, path: Path) -> ModuleType:
        found = re.search(r"CTA tile +(\d+) x 64, 64 of K per step", path.read_text())
        assert found
        seconds = {8: 24e-6, 16: 20e-6, 32: 28e-6}[int(found[1])]

        def matmul(a: Tensor, b: Tensor, *, offs: Tensor, out: Tensor) -> Tensor:
            self.machine.spend("k", seconds, 3e-6)
            problem = self.sources[0].problem
            return out.copy_(reference(Inputs(a, b, {"offs": offs}, sides=sides_of(problem)), problem))

        module = ModuleType(path.stem)
        module.__dict__["matmul"] = matmul
        return module

    def baseline(self, source: SpecFile) -> Baseline:
        """Return torch's call, which takes 30 us."""
        self.sources = [source]
        torchs = cublas(source)

        def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
            call = torchs.bind(inputs, d)

            def spending() -> Tensor:
                self.machine.spend("x", 30e-6, 7e-6)
                return call()

            return spending

        return replace(torchs, bind=bind)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    made = Kernels()
    monkeypatch.setattr("gemmgen.tune.measuring.ROUNDS", (2, 2, 3, 3))
    monkeypatch.setattr("gemmgen.tune.worker.import_generated", made.imported)
    monkeypatch.setattr("gemmgen.tune.worker.cublas", made.baseline)
    monkeypatch.setattr("gemmgen.tune.tuning.cublas", made.baseline)
    return made


def no_faults(request: Request, shape: Shape, modules: Sequence[Path]) -> Mapping[Path, str]:
    return {}


def tuned(folder: Path, machine_on: Callable[[int, Architecture], FakeMachine]) -> Outcome:
    path = folder / "experts.yaml"
    path.write_text(FEW_OPEN)
    options = TuningOptions(
        out=folder / "tuned",
        store=str(folder / "tune.db"),
        table=folder / "table.jsonl",
        devices=[0],
        budget=1e6,
    )
    machinery = TuningMachinery(machine_on, no_faults, PROTOCOL)
    (outcome,) = tune([path], [SHAPE], options, machinery)
    return outcome


def test_the_fastest_kernel_of_groups_is_found_and_a_library_has_it(tmp_path: Path, kernels: Kernels) -> None:
    outcome = tuned(tmp_path, kernels.machine_on)
    assert outcome.winner.pins["tile.m"] == 16
    assert outcome.row.seconds == pytest.approx(20e-6)
    assert outcome.samples.baseline_spread.median == pytest.approx(1.5)
    assert "torch._grouped_mm(a, b, offs=offs)" in outcome.path.read_text()
    product = make(outcome.path)
    assert product.plan.problem.groups == Groups("m_offsets", 4)
    (row,) = read_table(tmp_path / "table.jsonl", "NVIDIA H200")
    assert row == outcome.row
    assert row.dtypes.groups == Groups("m_offsets", 4)
    assert row.observed.flops == 2 * 24 * 64 * 128
    found = read([tmp_path / "table.jsonl"])
    made = assemble("tuned_groups", found, library.choose(found))
    assert [*made.fastest] == [(24, 64, 128)]


def test_without_a_gpu_tuning_and_timing_of_groups_say_so(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_machine(device: int, architecture: Architecture) -> FakeMachine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            require_gpu(architecture)
        raise AssertionError

    with pytest.raises(GemmgenError, match=r"^error\[no-gpu\]: torch finds no CUDA GPU"):
        tuned(tmp_path, no_machine)
