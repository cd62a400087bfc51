"""The simulator on small kernels, one for each kind of operation that no matmul of this project needs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.launch import lines_of
from triton.experimental.gluon.language import NVMMASharedLayout  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gemmgen.errors import GemmgenError
from gemmgen.hardware import BLACKWELL
from gluonsim import Kind, Result, Severity, run

pytestmark = pytest.mark.simulator

kernels: Any = importlib.import_module("kernels.operations")
FILE = Path(kernels.__file__)
TensorDescriptor: Any = TensorDescriptor_


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def found(result: Result) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.name) for finding in result.findings]


def test_a_kernel_may_return_early() -> None:
    x, d = integers(512), torch.zeros(512)
    result = run(kernels.early_return_kernel, (4,), (x, d, 200))
    assert result.findings == ()
    assert d.equal(torch.cat([x[:256], torch.zeros(256)]))


def test_memory_holds_elements_of_another_type_when_it_is_reinterpreted() -> None:
    x, d = integers(64, 64, dtype=torch.float16), torch.zeros(64, 64, dtype=torch.float16)
    assert run(kernels.reinterpret_kernel, (1,), (x, d)).findings == ()
    assert d.equal(x)


def test_cp_async_groups_are_awaited_in_order() -> None:
    x, d = integers(5, 64, 64), torch.zeros(5, 64, 64)
    result = run(kernels.async_copy_kernel, (1,), (x, d, 5, 3, 2))
    assert result.findings == ()
    assert d.equal(x)


def test_a_cp_async_that_is_not_awaited_is_a_race() -> None:
    x, d = integers(5, 64, 64), torch.zeros(5, 64, 64)
    result = run(kernels.async_copy_kernel, (1,), (x, d, 5, 3, 3))
    assert found(result)[0] == (Kind.READ_AFTER_WRITE, "ring")


def test_an_mbarrier_tells_of_a_cp_async() -> None:
    x, d = integers(64, 64), torch.zeros(64, 64)
    assert run(kernels.async_copy_arrive_kernel, (1,), (x, d)).findings == ()
    assert d.equal(x)


def test_warps_multiply_in_registers() -> None:
    a, b = integers(64, 64, dtype=torch.float16), integers(64, 64, dtype=torch.float16)
    d = torch.zeros(64, 64)
    assert run(kernels.mma_v2_kernel, (1,), (a, b, d)).findings == ()
    assert d.equal(a.float() @ b.float())


def test_scans_go_either_way() -> None:
    x = integers(64, 64) % 2 + 1
    sums, products = torch.zeros(64, 64), torch.zeros(64, 64)
    assert run(kernels.scan_kernel, (1,), (x, sums, products)).findings == ()
    assert sums.equal(x.cumsum(1))
    assert products.equal(x.flip(1).cumprod(1).flip(1))


def test_precise_arithmetic_is_rounded_to_nearest() -> None:
    x, d = integers(128), torch.zeros(128)
    assert run(kernels.precise_kernel, (1,), (x, d)).findings == ()
    assert d.equal(x.sqrt() / x)


def test_dependent_launches_change_nothing_within_one() -> None:
    x, d = integers(128), torch.zeros(128)
    assert run(kernels.dependent_launch_kernel, (1,), (x, d)).findings == ()
    assert d.equal(x)


def test_a_pointer_to_other_elements_points_to_the_same_byte() -> None:
    x, out = torch.arange(256, dtype=torch.int32) * 65537 + 3, torch.zeros(128, dtype=torch.int16)
    assert run(kernels.halves_kernel, (1,), (x, out)).findings == ()
    assert out.equal(x[2:66].view(torch.int16))


def test_a_reduction_applies_any_function_in_the_order_of_the_elements() -> None:
    x, d = torch.randn(64, 64), torch.zeros(64)
    assert found(run(kernels.first_kernel, (1,), (x, d))) == []
    assert d.equal(x[:, 0])


def test_inline_assembly_negates() -> None:
    x, d = torch.randn(128), torch.zeros(128)
    assert found(run(kernels.inline_assembly_kernel, (1,), (x, d))) == []
    assert d.equal(-x)


def test_a_kernel_makes_its_own_descriptors() -> None:
    x, d = integers(100, 64), torch.zeros(100, 64)
    assert run(kernels.device_descriptor_kernel, (1,), (x, d, 100, 64, 0)).findings == ()
    assert d[64:].equal(x[64:])
    assert not d[:64].any()


def test_a_descriptor_beyond_its_tensor_is_refused() -> None:
    with pytest.raises(GemmgenError, match=r"x_ptr: a transfer from \[64, 0\] on reaches outside"):
        run(kernels.device_descriptor_kernel, (1,), (integers(100, 64), torch.zeros(101, 64), 101, 64, 0))


def gathered(
    skip_wait: bool = False, column: int = 0
) -> tuple[Result, torch.Tensor, torch.Tensor, torch.Tensor]:
    import triton.experimental.gluon.language as gl  # pyright: ignore[reportMissingTypeStubs]
    from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
        TensorDescriptor,
    )

    layout: Any = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    x, d = integers(64, 64), torch.zeros(64, 64)
    rows = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:32].to(torch.int32)
    rows[3] = 64  # outside of the tensor
    descriptors = [TensorDescriptor.from_tensor(tensor, [1, 64], layout) for tensor in (x, d)]
    result = run(kernels.gather_kernel, (1,), (*descriptors, rows, skip_wait, column), target=BLACKWELL)
    return result, x, d, rows


def test_rows_are_gathered_and_scattered() -> None:
    result, x, d, rows = gathered()
    assert result.findings == ()
    inside = rows[rows < 64].long()
    expected = torch.zeros(64, 64)
    expected[inside] = x[inside]
    assert d.equal(expected)


def test_rows_that_are_not_awaited_are_a_race() -> None:
    result, *_ = gathered(skip_wait=True)
    assert (Kind.READ_AFTER_WRITE, "buffer") in found(result)


@pytest.mark.parametrize("column", [0, 1, 2, 4, -4, -1])
def test_the_last_coordinate_of_a_transfer_is_a_multiple_of_16_bytes(column: int) -> None:
    x, d = integers(100, 64), torch.zeros(100, 64)
    copied = run(kernels.device_descriptor_kernel, (1,), (x, d, 100, 64, column))
    result, *_ = gathered(column=column)
    for found_in, names in ((copied, ("x_ptr", "d_ptr")), (result, ("x_desc", "d_desc"))):
        faults = [] if column % 4 == 0 else [(Kind.UNALIGNED_TRANSFER, name) for name in names]
        assert found(found_in) == faults


def test_an_allocation_is_a_place_and_no_instruction() -> None:
    x, d = integers(64, 64), torch.zeros(3, 64, 64)
    result = run(kernels.allocates_in_a_loop_kernel, (1,), (x, d, 3))
    assert result.findings == ()
    assert d.equal(x.expand(3, 64, 64))


def test_a_barrier_that_one_partition_initialises_is_no_other_ones_yet() -> None:
    result = run(kernels.initialised_beside_a_wait_kernel, (1,), ())
    assert any(
        finding.kind in (Kind.READ_AFTER_WRITE, Kind.UNINITIALISED_BARRIER) and finding.name == "ready"
        for finding in result.findings
    )
    # Under no schedule alone does it depend on who comes first.
    lazy = run(kernels.initialised_beside_a_wait_kernel, (1,), (), schedules=("lazy",))
    assert found(lazy) == [(Kind.READ_AFTER_WRITE, "ready")]


@pytest.mark.parametrize(
    ("again", "invalidate", "parity", "expected"),
    [
        (False, False, 0, []),
        (True, True, 0, []),
        (True, False, 0, [(Kind.DOUBLE_INIT, "ready")]),
        (False, False, 2, [(Kind.WAIT_PARITY, "ready")]),
    ],
)
def test_a_barrier_has_one_life_at_a_time(
    again: bool, invalidate: bool, parity: int, expected: list[tuple[Kind, str]]
) -> None:
    result = run(kernels.barrier_lives_kernel, (1,), (again, invalidate, parity))
    assert found(result) == expected
    lints = [finding.kind for finding in result.findings if finding.severity is Severity.LINT]
    assert lints == [Kind.WAIT_PARITY] * (parity == 2)


def test_what_is_undefined_is_a_fault_only_where_something_depends_on_it() -> None:
    x, d = integers(128), torch.zeros(128)
    assert run(kernels.undefined_kernel, (1,), (x, d, 0, 0)).findings == ()
    assert d.equal(x)
    result = run(kernels.undefined_kernel, (1,), (x, d, 0, 1))
    assert {finding.kind for finding in result.findings} >= {Kind.UNDEFINED_VALUE}
    first = result.findings[0]
    assert first.kind is Kind.UNDEFINED_VALUE
    assert set(first.lines) <= lines_of(FILE, "quotient")
    assert "divided by zero" in first.text


def test_a_deadlock_is_one_finding_and_names_the_missing_arrival_first() -> None:
    assert run(kernels.handshake_kernel, (1,), (True,)).findings == ()
    result = run(kernels.handshake_kernel, (1,), (False,))
    assert found(result) == [(Kind.DEADLOCK, "ready")]
    (finding,) = result.findings
    assert finding.lines[0] in lines_of(FILE, "mbarrier.wait(ready, 0)")
    assert finding.lines[1] in lines_of(FILE, "mbarrier.wait(done, 0)")
    assert finding.file == str(FILE)


def test_a_column_of_pointers_is_whole_in_every_cta_of_a_cluster() -> None:
    x, d = integers(64), torch.zeros(64, 128)
    result = run(kernels.cluster_column_kernel, (1,), (x, d), num_ctas=2)
    assert result.findings == ()
    assert d.equal(x[:, None] + torch.arange(128.0))


def boxed(d: torch.Tensor) -> Any:
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    return TensorDescriptor.from_tensor(d, [64, 64], layout)


@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("schedules", [("lazy",), ("eager",), ("random",) * 5])
def test_programs_that_store_the_same_to_one_place_do_no_harm(schedules: tuple[str, ...], box: bool) -> None:
    x, d = integers(64, 64), torch.zeros(64, 64)
    kernel, target = (kernels.same_box_kernel, boxed(d)) if box else (kernels.same_place_kernel, d)
    (finding,) = run(kernel, (3,), (x, target, 0), schedules=schedules).findings
    assert (finding.kind, finding.severity) == (Kind.REDUNDANT_STORE, Severity.LINT)
    line = "tma.async_store(d_desc, [0, 0], buffer)" if box else "gl.store(tile_of(d_ptr, 64, 64), tile)"
    assert set(finding.lines) <= lines_of(FILE, line)
    assert "both store the same: one of the two is enough" in finding.text
    assert d.equal(x)


@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("schedules", [("lazy",), ("eager",), ("random",) * 5])
def test_programs_that_store_different_numbers_to_one_place_race(
    schedules: tuple[str, ...], box: bool
) -> None:
    x, d = integers(3, 64, 64), torch.zeros(64, 64)
    kernel, target = (kernels.same_box_kernel, boxed(d)) if box else (kernels.same_place_kernel, d)
    (finding,) = run(kernel, (3,), (x, target, 4096), schedules=schedules).findings
    assert finding.severity is Severity.ERROR
    assert finding.kind in (Kind.GLOBAL_RACE, Kind.WORK_IN_FLIGHT)


@pytest.mark.parametrize("schedules", [("lazy",), ("eager",), ("random",) * 5])
def test_stores_that_share_some_of_their_rows_are_compared_in_these_rows(schedules: tuple[str, ...]) -> None:
    def findings(offset: int, *recomputed: torch.Tensor) -> list[tuple[Kind, Severity]]:
        d.zero_()
        kernel, given = kernels.half_a_box_apart_kernel, (boxed(x), boxed(d), offset)
        result = run(kernel, (2,), given, schedules=schedules, recomputed=recomputed)
        return [(finding.kind, finding.severity) for finding in result.findings]

    x, d = integers(128, 64), torch.zeros(96, 64)
    assert findings(0) == [(Kind.REDUNDANT_STORE, Severity.LINT)]
    assert d.equal(x[:96])
    assert findings(0, d[32:64]) == []
    assert findings(32, d[32:64]) == [(Kind.UNEQUAL_STORES, Severity.ERROR)]
    # Nothing says that row 63 is computed twice.
    for recomputed in ((), (d[32:63],)):
        ((kind, severity),) = findings(32, *recomputed)
        assert severity is Severity.ERROR
        assert kind in (Kind.GLOBAL_RACE, Kind.WORK_IN_FLIGHT)


def test_numbers_that_a_type_does_not_reach_are_told() -> None:
    x, d = integers(64, 64), torch.zeros(64, 64, dtype=torch.float16)
    assert run(kernels.narrowing_kernel, (1,), (x, d)).findings == ()
    x[3, :5] = 65_520.0  # the first that fp16 rounds up to infinity
    x[4, 0] = torch.inf
    (finding,) = run(kernels.narrowing_kernel, (1,), (x, d)).findings
    assert (finding.kind, finding.severity) == (Kind.OVERFLOW, Severity.LINT)
    assert "5 of 4,096 numbers are above 65504 and become infinite" in finding.text
    assert finding.lines[0] in lines_of(FILE, ".to(d_ptr.dtype.element_ty)")


def test_a_storage_that_is_touched_as_elements_of_two_sizes_is_refused() -> None:
    x = integers(64, 64)
    with pytest.raises(GemmgenError, match="a tensor that is accessed as elements of two sizes is not known"):
        run(kernels.narrowing_kernel, (1,), (x, x.view(torch.float16)))
