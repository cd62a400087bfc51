"""The simulator runs Gluon kernels in general, with the device's numbers and order."""

from __future__ import annotations

import json
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import hopper as kernels_
from kernels.launch import launch, lines_of
from torch import Tensor
from triton.experimental.gluon.language import (  # pyright: ignore[reportMissingTypeStubs]
    NVMMASharedLayout,
)
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor,
)

from gemmgen.errors import GemmgenError
from gemmgen.module import import_generated
from gemmgen.numerics.encoding import bits
from gluonsim import Kind, Severity, run
from gluonsim.ir.ttgir import GenericTtgir, lower_kernel
from gluonsim.operations.tensor_cores import EXACT_PRODUCTS, product
from gluonsim.tensors.descriptors import Descriptor

kernels = cast(Any, kernels_)
ROOT = Path(__file__).parent.parent
KERNELS = ROOT / "tests" / "kernels" / "hopper.py"


def descriptor(tensor: Tensor, box: list[int], bases: list[list[int]] | None = None) -> Any:
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, cga_layout=bases or [])
    return TensorDescriptor.from_tensor(tensor, box, layout)


def small(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_a_run_that_does_not_wrap_the_ring_says_so() -> None:
    module = import_generated(ROOT / "generated" / "h100_bf16.py")
    result, _, _ = launch(module, (128, 256, 256), schedules=("lazy",))
    # Four k-steps fill each of the four stages once: one phase a barrier.
    assert result.phases == {f"load_{side}[{i}]": 1 for side in ("ready", "empty") for i in range(4)}
    assert set(result.uncovered) == set(result.phases)


@pytest.mark.parametrize(("steps", "uncovered"), [(4, ()), (2, ("ready",))])
def test_the_phases_of_an_invalidated_barrier_count(steps: int, uncovered: tuple[str, ...]) -> None:
    a, b = small(64, 64 * steps), small(64 * steps, 64)
    descriptors = [descriptor(x, [64, 64]) for x in (a, b, torch.zeros(64, 64, dtype=torch.float16))]
    result = run(kernels.blocked_matmul_kernel, (1, 1, 1), (*descriptors, steps))
    assert result.findings == ()
    assert result.phases == {"ready": steps}
    assert result.uncovered == uncovered


def test_a_load_rounds_to_tf32_where_the_descriptor_says_so() -> None:
    # tf32 has 10 bits of mantissa: numbers from 1 on are 2**-10 apart, and ties go to the even one.
    ulp = 2.0**-10
    given = torch.tensor([[1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2.0**-23, -0.0, math.inf, math.nan]])
    descriptor = Descriptor("x", given.view(-1), 0, (1, 6), (6, 1), 0.0, rounds_to_tf32=True)
    loaded = descriptor.box((0, 0), (2, 6)).load()
    expected = torch.tensor([[1, 1 + 2 * ulp, 1 + ulp, -0.0, math.inf, math.nan], [0.0] * 6])
    assert torch.equal(bits(loaded), bits(expected))
    assert bits(given[0, 0]) == bits(torch.tensor(1 + ulp / 2))  # the matrix stays as it is
    plain = Descriptor("x", given.view(-1), 0, (1, 6), (6, 1), 0.0)
    assert torch.equal(bits(plain.box((0, 0), (1, 6)).load()), bits(given))


def test_a_store_by_a_descriptor_that_rounds_is_refused() -> None:
    x, d = small(64, 64, dtype=torch.float32), torch.zeros(64, 64)
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    rounding = TensorDescriptor.from_tensor(d, [64, 64], layout, round_f32_to_tf32=True)
    with pytest.raises(GemmgenError, match="stores by a descriptor that rounds to tf32 are not known"):
        run(kernels.handoff_kernel, (1,), (x, rounding, True))


def test_a_fence_before_the_arrival_orders_another_partitions_store() -> None:
    x, d = small(64, 64), torch.zeros(64, 64, dtype=torch.float16)
    result = run(kernels.handoff_kernel, (1,), (x, descriptor(d, [64, 64]), True))
    assert result.findings == ()
    assert d.equal(x * 2)


def test_a_missing_fence_across_partitions_is_an_error() -> None:
    x, d = small(64, 64), torch.zeros(64, 64, dtype=torch.float16)
    result = run(kernels.handoff_kernel, (1,), (x, descriptor(d, [64, 64]), False))
    (finding,) = result.findings
    assert (finding.kind, finding.severity) == (Kind.MISSING_FENCE, Severity.ERROR)
    assert finding.name == "buffer"
    assert finding.lines[0] in lines_of(KERNELS, "tma.async_store(d_desc, [0, 0], buffer)")
    assert finding.lines[1] in lines_of(KERNELS, "buffer.store(tile * 2)")
    assert finding.partition == "partition 1 (storer)"


def test_a_partition_of_another_file_has_its_functions_name(tmp_path: Path) -> None:
    text = KERNELS.read_text()
    whole = text[text.index("@gluon.jit\ndef handoff_kernel") :].split("\n\n\n")[0]
    head = text[text.index("import triton") : text.index("@gluon.jit")]
    apart = tmp_path / "apart.py"
    apart.write_text(f"{head}from kernels.hopper import storer, writer\n\n\n{whole}\n")
    x, d = small(64, 64), torch.zeros(64, 64, dtype=torch.float16)
    kernel = runpy.run_path(str(apart))["handoff_kernel"]
    (finding,) = run(kernel, (1,), (x, descriptor(d, [64, 64]), False)).findings
    assert finding.partition == "partition 1 (storer)"
    assert finding.file == str(KERNELS)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_kernel_without_partitions_adds_its_parts_of_k(parts: int) -> None:
    a, b = small(128, 256), small(256, 128)
    d = torch.zeros(128, 128, dtype=torch.float16)
    descriptors = [descriptor(a, [64, 64]), descriptor(b, [64, 64]), descriptor(d, [64, 64])]
    result = run(kernels.blocked_matmul_kernel, (2, 2, parts), (*descriptors, 4 // parts))
    assert result.findings == ()
    assert d.equal((a.float() @ b.float()).half())


@pytest.mark.parametrize("meet", [True, False])
def test_a_multicast_overtakes_a_cta_that_nothing_holds_it_back_for(meet: bool) -> None:
    a, b = small(128, 640), small(640, 64)
    d = torch.zeros(128, 64, dtype=torch.float16)
    descriptors = [
        descriptor(tensor, box, [basis])
        for tensor, box, basis in ((a, [128, 64], [1, 0]), (b, [64, 64], [0, 0]), (d, [128, 64], [1, 0]))
    ]
    result = run(kernels.pipelined_multicast_kernel, (1,), (*descriptors, 10, meet), num_ctas=2)
    if meet:
        assert result.findings == ()
        assert d.equal((a.float() @ b.float()).half())
    else:
        (race,) = (found for found in result.findings if found.kind is Kind.WRITE_AFTER_READ)
        assert race.name == "b_smem"
        assert race.lines[0] in lines_of(KERNELS, "multicast=True)")
        assert race.lines[1] in lines_of(KERNELS, "b_smem.index(stage), total, is_async=True)")


def test_programs_that_store_the_same_elements_are_told() -> None:
    x, out = small(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    assert run(kernels.increment_kernel, (2,), (x, out, 250, 128)).findings == ()
    assert out[:250].equal(x[:250] + 1)
    assert not out[250:].any()

    out.zero_()
    (finding,) = run(kernels.increment_kernel, (2,), (x, out, 250, 64)).findings
    assert (finding.kind, finding.name) == (Kind.REDUNDANT_STORE, "out_ptr")
    assert "both store the same: both compute 64 of 128 elements" in finding.text
    assert finding.lines[0] in lines_of(KERNELS, "gl.store(out_ptr + offsets")


def test_a_program_in_place_races_with_its_neighbour_only_where_they_meet() -> None:
    x = small(256, dtype=torch.int32)
    assert run(kernels.increment_kernel, (2,), (x, x, 256, 128)).findings == ()
    found = run(kernels.increment_kernel, (2,), (x, x, 256, 64)).findings
    assert {finding.kind for finding in found} == {Kind.GLOBAL_RACE}


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


INT32 = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=25, deadline=None)
@given(INT32.filter(lambda a: a != 1), INT32.filter(lambda b: b not in (0, 1)))
def test_integers_wrap_and_division_truncates(a: int, b: int) -> None:
    out = torch.zeros(13, dtype=torch.int32)
    run(kernels.integers_kernel, (1,), (a, b, out), schedules=("lazy",))
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    shift = b & 31
    expected = [a + b, a - b, a * b, quotient, a - b * quotient, a & b, a | b, a ^ b, a >> shift, a << shift]
    expected += [min(a, b), max(a, b), a if a < b else b + 1]
    assert out.tolist() == [wrapped(value) for value in expected]  # pyright: ignore[reportUnknownMemberType]


def eight_bit_floats(exponent_bits: int, mantissa_bits: int, infinities: bool) -> Tensor:
    """The numbers of all 256 codes, from the definition of the format [ptx]."""
    bias, values = 2 ** (exponent_bits - 1) - 1, list[float]()
    for code in range(256):
        exponent = code >> mantissa_bits & (2**exponent_bits - 1)
        mantissa = code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits
        value = (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
        if infinities and exponent == 2**exponent_bits - 1:
            value = math.nan if mantissa else math.inf
        elif not infinities and code & 127 == 127:
            value = math.nan
        values.append(-value if code > 127 else value)
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("dtype", "exponent_bits", "mantissa_bits", "largest"),
    [(torch.float8_e4m3fn, 4, 3, 448.0), (torch.float8_e5m2, 5, 2, 57344.0)],
)
def test_eight_bit_floats_widen_exactly_and_narrow_to_the_nearest(
    dtype: torch.dtype, exponent_bits: int, mantissa_bits: int, largest: float
) -> None:
    codes = torch.arange(256).to(torch.uint8).view(dtype)
    wide = torch.zeros(256)
    run(kernels.convert_kernel, (1,), (codes, wide), schedules=("lazy",))
    numbers = eight_bit_floats(exponent_bits, mantissa_bits, infinities=dtype == torch.float8_e5m2)
    assert torch.equal(wide.nan_to_num(7e9), numbers.nan_to_num(7e9))

    # A third of the way to the next number still rounds back; what is too large becomes the largest.
    finite = numbers[numbers.isfinite()].sort().values
    between = finite[:-1] + (finite[1:] - finite[:-1]) / 3
    x = torch.zeros(256)
    x[: len(between)] = between
    x[len(between) :] = 1e9
    narrow = torch.zeros(256, dtype=dtype)
    run(kernels.convert_kernel, (1,), (x, narrow), schedules=("lazy",))
    assert narrow.float()[: len(between)].equal(finite[:-1])
    assert set(narrow.float()[len(between) :].tolist()) == {largest}  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def test_the_tensor_core_ignores_the_low_bits_of_fp32_and_wraps_int32() -> None:
    below_two = torch.tensor([[2.0 - 2.0**-23]])  # every bit of its mantissa is set; tf32 keeps ten
    assert product(below_two, torch.ones(1, 1), None, torch.float32).item() == 2.0 - 2.0**-10
    a, b = torch.full((1, 8), -128, dtype=torch.int8), torch.full((8, 1), -128, dtype=torch.int8)
    before = torch.full((1, 1), 2**31 - 1, dtype=torch.int32)
    assert product(a, b, before, torch.int32).item() == -(2**31) - 1 + 8 * 128 * 128


@pytest.mark.parametrize("depth", [EXACT_PRODUCTS, EXACT_PRODUCTS + 1])
def test_sums_of_int8_are_exact_up_to_the_largest_that_fp32_has_and_beyond(depth: int) -> None:
    a, b = torch.full((1, depth), -128, dtype=torch.int8), torch.full((depth, 1), -128, dtype=torch.int8)
    assert product(a, b, None, torch.int32).item() == depth * 2**14
    a[0, 0], b[0, 0] = 1, 1
    assert product(a, b, None, torch.int32).item() == (depth - 1) * 2**14 + 1


def test_a_deadlock_names_the_barrier_and_its_arrivals() -> None:
    (finding,) = run(kernels.overlong_wait_kernel, (1,), (torch.zeros(1, dtype=torch.int32),)).findings
    assert (finding.kind, finding.name) == (Kind.DEADLOCK, "full")
    assert finding.lines[0] in lines_of(KERNELS, "mbarrier.wait(full, 0)")
    assert "1 of 2 arrivals" in finding.text


def test_a_program_without_end_is_ended_and_every_partition_named() -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    result = run(kernels.endless_kernel, (1,), (flag,), schedules=("eager",), max_idle_operations=1000)
    (finding,) = result.findings
    (spin,), (sleep,) = lines_of(KERNELS, "while gl.load(flag_ptr,"), lines_of(KERNELS, "(full, 0)  # asleep")
    assert (finding.kind, finding.name) == (Kind.LIVELOCK, "endless_kernel")
    here, asleep = finding.lines
    assert here in (spin, spin + 1)  # it looks, and counts
    assert asleep == sleep
    assert f"partition 0 (spinner) of CTA 0 is at line {here} (spinner)" in finding.text
    assert f"partition 1 (sleeper) of CTA 0 waits at line {sleep} (sleeper)" in finding.text


def test_an_unknown_operation_is_an_error_with_its_line() -> None:
    with pytest.raises(GemmgenError) as error:
        run(kernels.unknown_operation_kernel, (1,), (torch.zeros(1, dtype=torch.int32),))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "unknown-operation"
    assert "tt.int_to_ptr" in diagnostic.message
    assert diagnostic.line in lines_of(KERNELS, "gl.pointer_type(gl.int32)")


def test_an_unknown_attribute_is_an_error_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*arguments: Any) -> GenericTtgir:
        lowered = lower_kernel(*arguments)
        text = lowered.text.replace('"tt.make_range"() <{', '"tt.make_range"() <{surprise = 1 : i32, ')
        return replace(lowered, text=text)

    monkeypatch.setattr(sys.modules["gluonsim.execution"], "lower_kernel", lower)
    x = small(128, dtype=torch.int32)
    with pytest.raises(GemmgenError) as error:
        run(kernels.increment_kernel, (1,), (x, x, 128, 128))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "unknown-attribute"
    assert diagnostic.message == "attribute surprise of operation tt.make_range is not known to the simulator"
    assert diagnostic.line in lines_of(KERNELS, "gl.program_id(0) * stride + gl.arange(0, 128, layout)")


def test_another_triton_is_an_error_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "4.0.0")
    with pytest.raises(
        GemmgenError, match=r"found Triton 4\.0\.0, and this needs Triton 3\.9: run `pip install"
    ):
        run(kernels.overlong_wait_kernel, (1,), (torch.zeros(1, dtype=torch.int32),))


def test_an_unknown_schedule_is_an_error() -> None:
    with pytest.raises(GemmgenError, match="no schedule is called 'fast'"):
        run(kernels.overlong_wait_kernel, (1,), (torch.zeros(1, dtype=torch.int32),), schedules=("fast",))


def test_no_schedule_is_an_error() -> None:
    with pytest.raises(GemmgenError, match="no schedule to run"):
        run(kernels.overlong_wait_kernel, (1,), (torch.zeros(1, dtype=torch.int32),), schedules=())


def test_no_patience_is_an_error() -> None:
    with pytest.raises(GemmgenError, match="max_idle_operations is 0: it must be positive"):
        run(kernels.endless_kernel, (1,), (torch.zeros(1, dtype=torch.int32),), max_idle_operations=0)


def test_a_kernel_that_the_compiler_refuses_is_an_error_with_its_words() -> None:
    with pytest.raises(GemmgenError, match="Triton refuses the kernel: "):
        run(kernels.overlong_wait_kernel, (1,), (torch.zeros(1),), num_ctas=3)


def test_the_same_seed_gives_the_same_trace(tmp_path: Path) -> None:
    module = import_generated(ROOT / "generated" / "h100_bf16_cluster2x1.py")
    traces: list[str] = []
    for _ in range(2):
        result, _, _ = launch(module, (256, 256, 256), schedules=("random",), seed=3)
        result.trace.write(tmp_path / "trace.json")
        traces.append((tmp_path / "trace.json").read_text())
    assert traces[0] == traces[1]
    events = json.loads(traces[0])["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"load", "mma", "store", "wait"}
    assert {"s", "f"} <= {event["ph"] for event in events}
