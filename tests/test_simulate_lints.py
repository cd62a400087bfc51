"""Loops that lose time: what the result says of them, and that the compiler does what it says."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from kernels.launch import lines_of
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gluonsim import Finding, Kind, Result, Severity, gpu_of_target, simulate
from gluonsim.ir.ttgir import lower_kernel
from gluonsim.lints.compiler import compiled, report_of

pytestmark = pytest.mark.simulator

gl, TensorDescriptor = cast(Any, gl_), cast(Any, TensorDescriptor_)
loops: Any = importlib.import_module("kernels.loops")
FILE = Path(loops.__file__)
HANDED_OVER = "two, handed over"
WAYS = ["one in flight", "two, awaited", "two, each in its own", HANDED_OVER]
STEPS = 10


def arguments(how: str) -> tuple[Any, ...]:
    """Return what `loop_kernel` takes, and the product that it must leave."""
    a, b, d = torch.randn(64, 64 * STEPS), torch.randn(64 * STEPS, 128), torch.zeros(64, 128)
    tensors = [tensor.half() for tensor in (a, b, d)]
    blocks = [[64, 64], [64, 128], [64, 128]]
    descriptors = [
        TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))
        for tensor, block in zip(tensors, blocks, strict=True)
    ]
    return (*descriptors, STEPS, how)


def launched(how: str, **options: Any) -> Result:
    return simulate(loops.loop_kernel, "h100", schedules=("lazy",), **options)[1](*arguments(how))


def of_kind(result: Result, kind: Kind) -> list[Finding]:
    return [finding for finding in result.performance if finding.kind is kind]


@pytest.mark.parametrize("how", WAYS)
def test_an_accumulator_that_is_handed_over_in_flight_is_told_where_ptxas_serializes(how: str) -> None:
    result = launched(how, machine_code=True)
    assert result.compiler is not None
    told = of_kind(result, Kind.SERIALIZED_MMA)
    assert ("C7514" in result.compiler.notes) == bool(told) == (how == HANDED_OVER)
    for finding in told:
        assert {finding.line} == lines_of(FILE, "# handed over")
        assert finding.severity is Severity.LINT


def test_loads_by_all_warps_are_told_with_their_barriers() -> None:
    how = "one in flight"
    result = launched(how)
    (found,) = of_kind(result, Kind.BARRIER_PER_LOAD)
    assert "has 2 barriers of all 4 warps" in found.text
    assert found.name == "a"
    assert found.lines == tuple(sorted(lines_of(FILE, "tma.async_load(")))
    assert result.errors == ()
    lowered = lower_kernel(loops.loop_kernel, arguments(how), gpu_of_target("h100").architecture, {})
    code, _ = compiled(lowered)
    looped = code.asm["ptx"].rpartition("wgmma.mma_async")[2]  # the loop's last instruction, and its loads
    before_loads = re.split(r"cp\.async\.bulk\.tensor\S+mbarrier", looped)[:-1]
    assert [text.count("bar.sync") > 0 for text in before_loads] == [True, True]


def test_loads_by_a_partition_of_one_warp_are_not_told() -> None:
    rings: Any = importlib.import_module("kernels.rings")
    x, d = torch.zeros(3 * 32, 32), torch.zeros(3 * 32, 32)
    layout = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
    x_desc = TensorDescriptor.from_tensor(x, [32, 32], layout)
    result = simulate(rings.ring_kernel, "h100", schedules=("lazy",))[1](x_desc, d, 3, 1, "in order", "")
    assert result.performance == ()


def test_a_slow_loop_is_a_note_and_no_finding() -> None:
    result = launched("one in flight")
    assert result.findings == ()
    (note,) = [note for note in result.notes if "[barrier-per-load]" in note]
    assert note.startswith(f"{FILE}:{min(lines_of(FILE, 'tma.async_load('))}: ")
    assert f"note: {note}" in str(result)


def test_the_report_has_a_line_of_the_compiler() -> None:
    result = launched("one in flight", machine_code=True)
    assert result.compiler is not None
    assert 64 < result.compiler.registers < 256
    assert f"\nptxas: {result.compiler.registers} registers, 0 bytes of spill stores" in str(result)
    assert cast(Any, result.as_dict())["compiler"]["registers"] == result.compiler.registers
    without = launched("one in flight")
    assert without.compiler is None
    assert "ptxas" not in str(without)


def test_a_report_of_ptxas_is_read() -> None:
    log = """ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""
    report = report_of(log)
    assert (report.registers, report.stack_bytes) == (168, 16)
    assert (report.spill_store_bytes, report.spill_load_bytes) == (24, 32)
    assert list(report.notes) == ["C7511"]
    assert "(C7511) Potential Performance Loss" in str(report)
