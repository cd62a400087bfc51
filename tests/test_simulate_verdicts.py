"""The simulator's verdicts: right kernels are clean, and the cause of a fault comes first, at its line."""

from __future__ import annotations

import importlib
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gluonsim import Kind, Result, Severity, simulate

pytestmark = pytest.mark.simulator

gl, TensorDescriptor = cast(Any, gl_), cast(Any, TensorDescriptor_)
verdicts: Any = importlib.import_module("kernels.verdicts")


def described(tensor: torch.Tensor, block: list[int], *bases: list[int]) -> Any:
    """Return a descriptor of a tensor, whose box the CTAs of a cluster divide as the bases say."""
    element = {torch.float16: gl.float16, torch.int32: gl.int32, torch.float32: gl.float32}[tensor.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(block, element, cga_layout=bases)
    return TensorDescriptor.from_tensor(tensor, block, layout)


def said(result: Result) -> list[tuple[Kind, str]]:
    """Return kinds and names of the errors, the first one first."""
    return [(each.kind, each.name) for each in result.findings if each.severity is Severity.ERROR]


@pytest.mark.parametrize("awaits", [True, False])
def test_who_has_awaited_a_pairs_commit_may_invalidate_its_barrier(awaits: bool) -> None:
    a, b, d = torch.randn(256, 64).half(), torch.randn(64, 128).half(), torch.zeros(256, 128).half()
    descriptors = (
        described(a, [256, 64], [1, 0]),
        described(b, [64, 128], [0, 1]),
        described(d, [256, 128], [1, 0]),
    )
    result = simulate(verdicts.pair_commit_kernel, "b200")[1](*descriptors, awaits=awaits, num_ctas=2)
    if awaits:
        assert said(result) == []
        torch.testing.assert_close(d, (a.float() @ b.float()).half(), rtol=1e-2, atol=1e-2)
    else:
        assert "multiplied" in {name for _, name in said(result)}


@pytest.mark.parametrize("how", ["convert", "reduce", "scan"])
@pytest.mark.parametrize("early", [True, False])
def test_scratch_memory_over_a_buffer_that_a_store_reads_is_a_race(how: str, early: bool) -> None:
    x, y, sink = torch.arange(512).int(), torch.zeros(512).int(), torch.zeros(512).int()
    result = simulate(verdicts.scratch_kernel, "h100")[1](
        described(y, [128]), x, sink, 4, how=how, early=early, num_warps=4
    )
    if early:
        assert said(result) == []
        assert y.equal(x)
    else:
        (kind, name), *_ = said(result)
        assert (kind, name) == (Kind.WRITE_AFTER_READ, "page")
        assert "scratch memory of" in result.findings[0].text
        assert "tma.store_wait must come first" in result.findings[0].text


@pytest.mark.parametrize("awaits", [True, False])
def test_a_descriptor_that_a_load_may_still_read_is_not_made_anew(awaits: bool) -> None:
    x, d = torch.randn(4, 64, 64), torch.zeros(4, 64, 64)
    result = simulate(verdicts.remade_descriptor_kernel, "h100")[1](x, d, 4, awaits=awaits)
    if awaits:
        assert said(result) == []
        assert d.equal(x)
    else:
        assert said(result)[:1] == [(Kind.WRITE_AFTER_READ, "x_ptr")]
        assert "descriptor is made anew while the TMA load" in result.findings[0].text
        assert "make_tensor_descriptor" in result.findings[0].snippet


@pytest.mark.parametrize(
    ("parity", "factor", "first"),
    [(1, 2, None), (0, 2, (Kind.DEADLOCK, "room")), (1, 3, (Kind.BYTE_COUNT, "ready"))],
)
def test_a_load_that_is_never_issued_is_no_wrong_count_of_bytes(
    parity: int, factor: int, first: tuple[Kind, str] | None
) -> None:
    x = described(torch.randn(128, 64), [64, 64])
    errors = said(simulate(verdicts.load_behind_a_wait_kernel, "h100")[1](x, parity=parity, factor=factor))
    assert errors[:1] == ([first] if first else [])


def test_a_barrier_without_a_variable_is_named_by_its_whole_line() -> None:
    result = simulate(verdicts.barrier_without_a_variable_kernel, "h100")[1]((1, 2))
    assert said(result) == [(Kind.DEADLOCK, "_await(mbarrier.allocate_mbarrier(batch=sizes[1]))")]
