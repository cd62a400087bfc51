"""An error inside the simulator is told as a use that it does not know, with the line of the kernel."""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Generator
from typing import Any, NoReturn, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as Tiled,
)

from gemmgen.errors import GemmgenError
from gluonsim import simulate
from gluonsim.compiled import parsed_kernel

pytestmark = pytest.mark.simulator

gl, TensorDescriptor = cast(Any, gl_), cast(Any, Tiled)
addresses: Any = importlib.import_module("kernels.addresses")
odd: Any = importlib.import_module("kernels.odd")


@pytest.fixture(autouse=True)
def afresh() -> Generator[None]:
    """Read each kernel again, before and behind an error."""
    parsed_kernel.cache_clear()
    yield
    parsed_kernel.cache_clear()


def broken(*_: object, **__: object) -> NoReturn:
    raise ValueError("sizes differ")


def refused(kernel: Any, *args: Any) -> tuple[str, str]:
    """Return the message of the refusal of a launch and the line that it is about."""
    with pytest.raises(GemmgenError) as error:
        simulate(kernel, "h100", schedules=("lazy",))[1](*args)
    diagnostic = error.value.diagnostics[0]
    return diagnostic.message, linecache.getline(diagnostic.path, diagnostic.line or 0).strip()


def copy() -> tuple[Any, ...]:
    """Return a kernel that copies rows by TMA, and its arguments."""
    layout = gl.NVMMASharedLayout.get_default_for([32, 64], gl.float16)
    tensors = [torch.zeros(100, 64).half() for _ in range(2)]
    descriptors = [TensorDescriptor.from_tensor(tensor, [32, 64], layout) for tensor in tensors]
    return addresses.host_kernel, *descriptors, 0


@pytest.mark.parametrize(("method", "line"), [("load", "tma.async_load("), ("store", "tma.async_store(")])
def test_work_that_completes_later_has_the_line_that_began_it(
    method: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"gluonsim.tensors.descriptors.Box.{method}", broken)
    message, at = refused(*copy())
    assert "is not known to the simulator (ValueError: sizes differ)" in message
    assert at.startswith(line)


def test_an_mma_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gluonsim.operations.tensor_cores.product", broken)
    message, at = refused(odd.wgmma_kernel, torch.zeros(64, 64))
    assert "ttng.warp_group_dot is not known to the simulator (ValueError: sizes differ)" in message
    assert "warpgroup_mma(" in at


def test_an_operation_that_cannot_be_prepared_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gluonsim.operations.libdevice.FUNCTIONS", None)
    message, at = refused(odd.bessel_kernel, torch.zeros(128))
    assert "use of operation tt.extern_elementwise is not known to the simulator (AttributeError" in message
    assert "libdevice.cyl_bessel_i0" in at


def test_memory_whose_places_are_not_known_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gluonsim.compiled.shared_memory_index", broken)
    message, at = refused(*copy())
    assert "use of operation ttg.local_alloc is not known to the simulator (ValueError" in message
    assert "allocate_shared_memory" in at


def test_text_that_cannot_be_read_has_the_line_of_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gluonsim.ir.parse.MemDescType", broken)
    message, at = refused(*copy())
    assert message == "cannot read the compiler's output (ValueError: sizes differ)"
    assert "allocate_shared_memory" in at
