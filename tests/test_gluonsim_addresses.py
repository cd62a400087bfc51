"""Descriptors may begin outside of a tensor; the elements that a transfer touches must lie in it."""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
import triton.language as tl_  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as Tiled,
)

from gemmgen.errors import GemmgenError
from gluonsim import Finding, Kind, Result, simulate

pytestmark = pytest.mark.simulator

gl, tl, TensorDescriptor = cast(Any, gl_), cast(Any, tl_), cast(Any, Tiled)
reinterpret: Callable[[Tensor, Any], Any] = cast(Any, triton).reinterpret
kernels: Any = importlib.import_module("kernels.addresses")

ROWS, COLUMNS = 100, 64


def others(result: Result) -> list[Finding]:
    """Return all findings but `descriptor-base`, which a load by a base ahead of its tensor has."""
    return [each for each in result.findings if each.kind != Kind.DESCRIPTOR_BASE]


def ran(kernel: Any, *args: Any) -> Result:
    """Return the result of a launch of one program."""
    return simulate(kernel, "h100", schedules=("lazy", "eager"))[1](*args)


def refused(kernel: Any, *args: Any) -> tuple[str, str, str]:
    """Return why a launch is refused: the code, the message and the line."""
    with pytest.raises(GemmgenError) as error:
        ran(kernel, *args)
    diagnostic = error.value.diagnostics[0]
    return diagnostic.code, diagnostic.message, linecache.getline(kernels.__file__, diagnostic.line or 0)


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """Return X and D within larger storages, and the storage of D."""
    x = torch.randn(ROWS + 40, COLUMNS).half()[20:-20]
    whole = torch.zeros(ROWS + 40, COLUMNS).half()
    return x, whole[20:-20], whole


def copied(x: Tensor, first: int, count: int) -> Tensor:
    """Return D's storage after some rows were copied: row 0 is 20 rows behind its beginning."""
    whole = torch.zeros(ROWS + 40, COLUMNS).half()
    storage = x.as_strided((ROWS + 40, COLUMNS), (COLUMNS, 1), 0)
    whole[20 + first : 20 + first + count] = storage[20 + first : 20 + first + count]
    return whole


class Before:
    """An address some rows before a tensor, as a program makes one of ``data_ptr()``."""

    def __init__(self, tensor: Tensor, rows: int) -> None:
        self.tensor = tensor
        self.dtype = tensor.dtype
        self._bytes = rows * COLUMNS * tensor.element_size()

    def data_ptr(self) -> int:
        return self.tensor.data_ptr() - self._bytes


LAYOUT = gl.NVMMASharedLayout.get_default_for([32, COLUMNS], gl.float16)


def before(tensor: Tensor, ahead: int) -> Any:
    """Return a descriptor that begins some rows before a tensor and ends with it."""
    return TensorDescriptor(
        Before(tensor, ahead), [ahead + ROWS, COLUMNS], [COLUMNS, 1], [32, COLUMNS], LAYOUT
    )


@pytest.mark.parametrize("ahead", [7, 1 << 20])
@pytest.mark.parametrize(("row", "count"), [(0, 32), (80, 20), (-7, 32)])
def test_a_base_before_its_tensor_reaches_it(ahead: int, row: int, count: int) -> None:
    x, d, whole = tensors()
    assert not others(ran(kernels.ahead_kernel, x, d, ahead, row, ahead + ROWS))
    assert whole.equal(copied(x, row, count))
    whole.zero_()
    assert not others(ran(kernels.host_kernel, before(x, ahead), before(d, ahead), ahead + row))
    assert whole.equal(copied(x, row, count))


def test_what_reaches_outside_of_the_storage_is_out_of_bounds_with_its_line() -> None:
    x, d, _ = tensors()
    for code, message, line in (
        refused(kernels.ahead_kernel, x, d, 40, -30, 40 + ROWS),
        refused(kernels.ahead_kernel, x, d, 40, ROWS, 100 + ROWS),
        refused(kernels.ragged_kernel, x, d, 0, 20, -30),
        refused(kernels.ragged_kernel, x, d, ROWS, 40, 0),
    ):
        assert code == "out-of-bounds"
        assert message.startswith("x_ptr: a transfer from ")
        assert "tma.async_load(x_desc" in line
    code, message, line = refused(kernels.host_kernel, before(x, 40), before(d, 40), 10)
    assert (code, message.partition(":")[0]) == ("out-of-bounds", "x_desc")
    assert "tma.async_load(x_desc" in line


@pytest.mark.parametrize(("row", "count"), [(0, 32), (32, 8), (-8, 32), (64, 0)])
def test_a_kernel_makes_ragged_descriptors_whose_addresses_wrap_around(row: int, count: int) -> None:
    x, d, whole = tensors()
    assert not ran(kernels.ragged_kernel, x, d, 20, 40, row).findings
    assert whole.equal(copied(x, 20 + row, count))


def test_strides_that_no_descriptor_has_are_refused() -> None:
    x, d, _ = tensors()
    code, message, line = refused(kernels.strides_kernel, x, d, -64)
    assert (code, message) == (
        "bad-operand",
        "a descriptor over x_ptr has the strides [-64, 1]: none may be negative",
    )
    assert "x_desc = tma.make_tensor_descriptor" in line
    shape, block = [ROWS, COLUMNS], [32, COLUMNS]
    for stride in (-64, 1 << 39):
        descriptor = TensorDescriptor(x, shape, [stride, 1], block, LAYOUT)
        code, message, _ = refused(kernels.host_kernel, descriptor, descriptor, 0)
        assert code == "bad-launch"
        assert message.startswith(f"the strides of x_desc are [{stride}, 1]")


def test_a_tensor_is_read_as_another_type() -> None:
    x, d = (torch.randn(128) * 8).to(torch.float8_e5m2), torch.zeros(128)
    assert not ran(kernels.widen_kernel, reinterpret(x.view(torch.int8), tl.float8e5), d).findings
    assert d.equal(x.float())
    odd = reinterpret(torch.zeros(257, dtype=torch.int8)[1:], tl.float16)
    code, message, _ = refused(kernels.widen_kernel, odd, d)
    assert (code, message) == ("bad-launch", "the address of x_ptr is within an element of its tensor")


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int8])
def test_descriptors_have_integers_of_any_sign(dtype: torch.dtype) -> None:
    x, d = (torch.zeros(ROWS, COLUMNS, dtype=dtype) for _ in range(2))
    x += torch.arange(ROWS, dtype=dtype)[:, None]
    layout = gl.NVMMASharedLayout.get_default_for(
        [32, COLUMNS], gl.int32 if dtype == torch.int32 else gl.int8
    )
    x_desc, d_desc = (
        TensorDescriptor(Before(tensor, 10), [10 + ROWS, COLUMNS], [COLUMNS, 1], [32, COLUMNS], layout)
        for tensor in (x, d)
    )
    assert not others(ran(kernels.host_kernel, x_desc, d_desc, 15))
    assert d[5:37].equal(x[5:37])
    assert not d[37:].any()


def test_an_address_without_a_tensor_is_refused() -> None:
    class Nowhere(Before):
        def __init__(self, tensor: Tensor) -> None:
            super().__init__(tensor, 0)
            self._address = tensor.data_ptr()
            del self.tensor

        def data_ptr(self) -> int:
            return self._address

    x, d, _ = tensors()
    descriptor = TensorDescriptor(Nowhere(x), [ROWS, COLUMNS], [COLUMNS, 1], [32, COLUMNS], LAYOUT)
    code, message, _ = refused(kernels.host_kernel, descriptor, before(d, 0), 0)
    assert (code, message) == ("bad-launch", "x_desc gives an address, and it holds no tensor that has it")
