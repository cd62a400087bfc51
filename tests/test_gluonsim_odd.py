"""Arithmetic that few kernels use has the numbers of the device, or is refused by name with its line."""

from __future__ import annotations

import importlib
import linecache
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor
from triton.experimental.gluon.language.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    tma as tma_,  # pyright: ignore[reportUnknownVariableType]
)
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as Tiled,
)

from gemmgen.errors import GemmgenError
from gluonsim import Result, simulate

pytestmark = pytest.mark.simulator

gl, tma, TensorDescriptor = cast(Any, gl_), cast(Any, tma_), cast(Any, Tiled)
kernels: Any = importlib.import_module("kernels.odd")


def ran(kernel: Any, *args: Any, grid: int = 1) -> Result:
    """Return the result of a launch."""
    return simulate(kernel, "h100", schedules=("lazy",))[grid](*args)


def signed(value: int) -> int:
    """Return the number that int64 has for 64 bits."""
    return value - 2**64 if value >> 63 else value


def test_the_largest_numbers_are_found_by_keys_of_64_bits() -> None:
    x = torch.randn(3, 256)
    value, index = torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int32)
    assert not ran(kernels.top_kernel, x, value, index, 256, 4, grid=3).findings
    wanted = x.topk(4)
    assert value.equal(wanted.values)
    assert index.equal(wanted.indices.int())


def test_unsigned_numbers_of_64_bits_are_larger_than_signed_ones() -> None:
    corners = [1, 2, 3, 7, 2**31, 2**32 + 1, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    pairs = [(x, y) for x in [0, *corners] for y in corners]
    size = 256
    pairs += [(5 * i + 2**63, i + 2**40) for i in range(size - len(pairs))]
    x, y = (torch.tensor([signed(pair[side]) for pair in pairs]) for side in (0, 1))
    d, floats = torch.zeros(7, size, dtype=torch.int64), torch.zeros(size)
    assert not ran(kernels.unsigned_kernel, x, y, d, floats, size).findings
    wanted = [(x // y, x % y, x >> (y & 63), min(x, y), max(x, y), int(x < y), x * y >> 64) for x, y in pairs]
    assert d.T.equal(torch.tensor([list(map(signed, row)) for row in wanted]))
    assert floats.equal(torch.tensor([rounded(x) for x, _ in pairs]))


def rounded(value: int) -> float:
    """Return an integer rounded to fp32 once: to 24 bits, to even."""
    shift = max(0, value.bit_length() - 24)
    kept, left = value >> shift, value & ((1 << shift) - 1)
    half = 1 << shift >> 1
    kept += shift > 0 and (left > half or (left == half and kept & 1))
    return float(kept << shift)


@pytest.mark.parametrize(
    ("dtype", "of_bits"),
    [
        (torch.uint8, torch.int8),
        (torch.uint16, torch.int16),
        (torch.uint32, torch.int32),
        (torch.uint64, torch.int64),
    ],
)
def test_tensors_may_be_of_unsigned_integers(dtype: torch.dtype, of_bits: torch.dtype) -> None:
    width = 8 * dtype.itemsize
    numbers = [(i * 0x9E3779B97F4A7C15 + 255 * i) % 2**width for i in range(128)]
    x = torch.tensor([signed(number << (64 - width)) >> (64 - width) for number in numbers]).to(of_bits)
    d, floats = torch.zeros(256, dtype=of_bits), torch.zeros(128)
    assert not ran(kernels.integers_kernel, x.view(dtype), d.view(dtype), floats).findings
    wanted = [(x if x > 127 else 5) * 3 + (x >> 2) for x in numbers] + [min(x // 7, x % 11) for x in numbers]
    assert [int(value) % 2**width for value in d] == [value % 2**width for value in wanted]
    assert floats.equal(torch.tensor([rounded(x) for x in numbers]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32])
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("add", torch.add),
        ("min", torch.minimum),
        ("max", torch.maximum),
        ("and", torch.bitwise_and),
        ("or", torch.bitwise_or),
        ("xor", torch.bitwise_xor),
    ],
)
def test_integers_are_reduced_by_tma(
    name: str, wanted: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    low, high = (-(2**31), 2**31) if dtype == torch.int32 else (0, 2**32)
    x, before = (torch.randint(low, high, (32, 32)) for _ in range(2))
    d = before.to(torch.int32).view(dtype)
    layout = gl.NVMMASharedLayout(128, 32, 2)
    descriptor = TensorDescriptor.from_tensor(d, [32, 32], layout)
    operation = getattr(tma, f"async_atomic_{name}")
    result = ran(kernels.reductions_kernel, x.to(torch.int32).view(dtype), descriptor, operation)
    assert not result.findings
    assert d.view(torch.int32).equal(wanted(x, before).to(torch.int32))


def _number(x_ptr: object) -> int:
    del x_ptr
    return 5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"expect": [1]}, "expect must be a dictionary of tensors, and has list"),
        ({"expect": {"d_ptr": 5}}, "expect must be a dictionary of tensors, and has int for d_ptr"),
        ({"reference": _number}, "what reference returns must be a dictionary of tensors, and has int"),
    ],
)
def test_expectations_are_tensors_by_name(option: dict[str, Any], message: str) -> None:
    x, d = torch.zeros(128, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    with pytest.raises(GemmgenError, match=message):
        simulate(kernels.integers_kernel, "h100", **option)[1](x, d, torch.zeros(128))


def test_numbers_are_rounded_toward_zero() -> None:
    x = torch.randn(512) * 100
    special = torch.tensor([0.0, -0.0, 65519.0, -65520.0, 1e30, float("inf"), 1e-9, 2.0**-24, -57345.0])
    x[: len(special)] = special
    found = [torch.zeros(512, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2)]
    assert not ran(kernels.toward_zero_kernel, x, *found).findings
    for values in found:
        is_finite = x.isfinite()
        assert values.float().isfinite().equal(is_finite)
        at_most = values.double().abs() <= x.double().abs()
        assert bool(at_most.all())
        integers = values.view(torch.int8 if values.element_size() == 1 else torch.int16)
        above = (integers + 1).view(values.dtype).double().abs()
        next_is_larger = (above > x.double().abs()) | above.isnan() | above.isinf() | ~is_finite
        assert bool(next_is_larger.all())
    assert found[1].equal((x.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16())


def test_functions_of_libdevice_are_computed_by_name() -> None:
    size = 128
    x = torch.randn(size) * 3
    x[:4] = torch.tensor([2.5, -2.5, float("nan"), -0.4])
    d, is_nan = torch.zeros(6, size), torch.zeros(size, dtype=torch.int32)
    assert not ran(kernels.libdevice_kernel, x, d, is_nan, size).findings
    wide = x.double()
    away = torch.copysign((wide.abs() + 0.5).floor(), wide)  # ties too
    root = torch.copysign(wide.abs() ** (1 / 3), wide)
    wanted = torch.stack([wide.tanh(), away, wide.abs() ** 2.5, root, wide.exp(), wide * wide + wide])
    torch.testing.assert_close(d, wanted.float(), rtol=2e-7, atol=1e-38, equal_nan=True)
    assert is_nan.equal(x.isnan().int())


def test_another_function_of_libdevice_is_refused_by_name_and_line() -> None:
    with pytest.raises(GemmgenError, match=r"__nv_cyl_bessel_i0f of f32 is not known") as error:
        ran(kernels.bessel_kernel, torch.zeros(128))
    line = linecache.getline(kernels.__file__, error.value.diagnostics[0].line or 0)
    assert "libdevice.cyl_bessel_i0" in line


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int8])
def test_batches_are_multiplied_in_each_type(dtype: torch.dtype) -> None:
    x, y = (torch.randint(-4, 5, (4, 32, 32)).to(dtype) for _ in range(2))
    d = torch.zeros(4, 32, 32, dtype=dtype)
    assert not ran(kernels.batches_kernel, x, y, d).findings
    assert d.equal((x.double() @ y.double()).long().to(dtype))  # int8 wraps


def test_a_kernel_that_ends_the_compiler_is_refused_with_the_assertion_and_its_line() -> None:
    with pytest.raises(
        GemmgenError, match=r"Triton aborts on the kernel \(tileShape.size\(\) == rank\)"
    ) as error:
        ran(kernels.batched_wgmma_kernel, torch.zeros(1))
    line = error.value.diagnostics[0].line or 0
    assert linecache.getline(kernels.__file__, line + 1).startswith("def batched_wgmma_kernel")


def test_a_load_that_reduces_is_refused_with_its_line() -> None:
    with pytest.raises(GemmgenError, match=r"tcgen05.ld.red\) is no instruction of sm_100") as error:
        simulate(kernels.reducing_load_kernel, "b200")[1](torch.zeros(128))
    line = linecache.getline(kernels.__file__, error.value.diagnostics[0].line or 0)
    assert "memory.load_max" in line


def test_fp32_is_what_the_reference_rounds_to() -> None:
    for value in (2**24 + 1, 2**24 + 3, 2**63 + 2**39, 2**64 - 1):
        assert rounded(value) == struct.unpack("f", struct.pack("f", float(value)))[0]
