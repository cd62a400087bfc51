"""Descriptors whose base lies outside of the memory of their tensor: TMA loads read there, stores do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernels import descriptors
from mutants.pages import TensorDescriptor, gl, integers
from torch import Tensor

from gluonsim import Kind
from gluonsim.execution import run
from gluonsim.findings import Severity
from gluonsim.result import Result

pytestmark = pytest.mark.simulator

ROWS, COLUMNS = 32, 64
kernels: Any = descriptors
LAYOUT: Any = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)


class Moved:
    """An address some elements away from a tensor."""

    def __init__(self, tensor: Tensor, elements: int) -> None:
        self.tensor, self.dtype, self.offset = tensor, tensor.dtype, elements * tensor.itemsize

    def data_ptr(self) -> int:
        return self.tensor.data_ptr() + self.offset


def boxes_of(tensor: Tensor, ahead: int) -> Any:
    """Return a descriptor of a matrix that begins some rows ahead of it, and ends with it."""
    base = Moved(tensor, -ahead * COLUMNS) if ahead else tensor
    return TensorDescriptor(base, [len(tensor) + ahead, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS], LAYOUT)


def copied(x: Tensor, x_ahead: int, y_ahead: int) -> tuple[Result, Tensor]:
    """Return the result of a copy of a matrix to another one, by descriptors that begin ahead of both."""
    y = torch.zeros(ROWS, COLUMNS)
    given = (boxes_of(x, x_ahead), boxes_of(y, y_ahead), x_ahead, y_ahead)
    return run(kernels.moved_base_kernel, (1,), given), y


@pytest.mark.parametrize("y_ahead", [0, 1, 32])
def test_a_store_may_have_a_base_ahead_of_its_tensor(y_ahead: int) -> None:
    x = integers(ROWS, COLUMNS).float()
    result, y = copied(x, 0, y_ahead)
    assert result.findings == ()
    assert y.equal(x)


@pytest.mark.parametrize("ahead", [1, 32])
def test_a_load_with_a_base_ahead_of_its_tensor_is_an_error_although_its_boxes_lie_within(ahead: int) -> None:
    x = integers(ROWS, COLUMNS).float()
    result, y = copied(x, ahead, 0)
    assert y.equal(x)
    (finding,) = result.findings
    assert (finding.kind, finding.name, finding.severity) == (Kind.DESCRIPTOR_BASE, "x_desc", Severity.ERROR)
    assert f"lies {ahead * COLUMNS:,} elements ahead of the memory of its tensor" in finding.text


def test_a_base_ahead_of_a_view_within_the_memory_of_its_tensor_is_fine() -> None:
    whole = integers(2 * ROWS, COLUMNS).float()
    result, y = copied(whole[ROWS:], ROWS, 0)
    assert result.findings == ()
    assert y.equal(whole[ROWS:])


def test_a_load_with_a_base_after_the_end_is_an_error_although_its_box_is_empty() -> None:
    x, y = integers(ROWS, COLUMNS).float(), torch.ones(ROWS, COLUMNS)
    behind = TensorDescriptor(Moved(x, x.numel()), [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS], LAYOUT)
    result = run(kernels.moved_base_kernel, (1,), (behind, boxes_of(y, 0), ROWS, 0))
    (finding,) = result.findings
    assert (finding.kind, finding.name) == (Kind.DESCRIPTOR_BASE, "x_desc")
    assert "1 elements after the end of the memory" in finding.text
    assert not y.any()  # a box outside of the tensor is zeros


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_base_of_a_descriptor_of_the_kernel_is_judged_too(ahead: int) -> None:
    x, y = integers(ROWS, COLUMNS).float(), torch.zeros(ROWS, COLUMNS)
    result = run(kernels.moved_pointer_kernel, (1,), (x, y, ahead, ROWS, COLUMNS))
    assert y.equal(x)
    assert [(each.kind, each.name) for each in result.findings] == [(Kind.DESCRIPTOR_BASE, "x_ptr")] * ahead
