"""arguments: what a block-scaled kernel is launched with; a hand-written one gets the exact result with it.

In the simulator: no Blackwell GPU has run it.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from drawn import integer_inputs, random_inputs
from kernels import blackwell as kernels_
from right_kernel import CPU, SCALED, VECTORS, generator, pack_scales, spec_of

from gemmgen.hardware import BLACKWELL
from gemmgen.numerics.case import kernel_arguments
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.reference import reference
from gluonsim import run

gl = cast(Any, gl_)
kernels = cast(Any, kernels_)
ARGUMENTS = ["a_desc", "b_desc", "a_scale_desc", "b_scale_desc", "d_desc"]


def fake_module(boxes: dict[str, tuple[list[int], Any]]) -> ModuleType:
    module = ModuleType("fake")
    table = {name: {"block_shape": box, "layout": layout} for name, (box, layout) in boxes.items()}
    module.__dict__.update(
        matmul_kernel=SimpleNamespace(arg_names=ARGUMENTS), TMA=table, pack_scales=pack_scales
    )
    return module


def boxes_of(kind: str) -> dict[str, tuple[list[int], Any]]:
    """Boxes of the hand-written kernel of 256 x 128 x 128 for a pair of CTAs."""
    (a, a_format), (b, b_format) = SCALED[kind]
    mixed = "e2m1" in (a, b) and a != b

    def box(shape: list[int], dtype: Any, bases: list[list[int]], *, padded: bool = False) -> Any:
        return shape, gl.NVMMASharedLayout.get_default_for(shape, dtype, cga_layout=bases, fp4_padded=padded)

    def scale_box(rows: int, vector: int, basis: list[int]) -> Any:
        layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=5, cga_layout=[basis])
        return [1, rows // 128, 128 // vector // 4, 2, 256], layout

    element = {"e2m1": gl.uint8, "e4m3": gl.float8e4nv, "e5m2": gl.float8e5}
    widths = [64 if dtype == "e2m1" else 128 for dtype in (a, b)]
    return {
        "a": box([256, widths[0]], element[a], [[1, 0]], padded=mixed and a == "e2m1"),
        "b": box([128, widths[1]], element[b], [[1, 0]], padded=mixed and b == "e2m1"),
        "a_scale": scale_box(256, VECTORS[a_format], [0, 1, 0, 0, 0]),
        "b_scale": scale_box(128, VECTORS[b_format], [0, 0, 0, 0, 0]),
        "out": box([256, 32], gl.float32, [[1, 0]]),
    }


@pytest.mark.parametrize("kind", SCALED)
def test_descriptors_are_over_packed_scales_and_bytes(kind: str) -> None:
    spec = spec_of(kind, "fp32")
    inputs = random_inputs((300, 200, 640), spec.problem, generator(), guarded=True)
    d, boxes = torch.empty(300, 200), boxes_of(kind)
    found = kernel_arguments(fake_module(boxes), spec.problem, inputs, d)
    assert [x.layout for x in found] == [boxes[name][1] for name in ("a", "b", "a_scale", "b_scale", "out")]
    assert found[0].base.data_ptr() == inputs.a.data_ptr()
    assert list(found[1].shape) == list(inputs.b.T.shape)
    for position, rows, name in ((2, 3, "a_scale"), (3, 2, "b_scale")):
        columns = 640 // 16 // 4 if kind == "nvfp4" else 640 // 32 // 4
        base = found[position].base
        assert list(base.shape) == [1, rows, columns, 2, 256]
        assert base.dtype == (torch.float8_e4m3fn if kind == "nvfp4" else torch.uint8)
        # Element (33, 5) lies in block (0, 1) at 33 % 32 * 16 + 1 * 4 + 1.
        scales = inputs.extras[name].view(torch.uint8)
        assert base.view(torch.uint8)[0, 0, 1].flatten()[16 + 4 + 1] == scales[33, 5]


@pytest.mark.parametrize("kind", SCALED)
def test_a_hand_written_kernel_gets_the_reference_in_the_simulator(kind: str) -> None:
    spec = spec_of(kind, "fp32")
    inputs = integer_inputs((500, 200, 640), spec.problem, generator())
    d = Matrix.poisoned(500, 200, "fp32", CPU).view
    arguments = kernel_arguments(fake_module(boxes_of(kind)), spec.problem, inputs, d)
    formats = [dtype for dtype, _ in SCALED[kind]]
    result = run(
        kernels.scaled_kernel,
        (4,),
        (*arguments, 640 // 128, *formats),
        target=BLACKWELL,
        num_ctas=2,
        schedules=("random",),
    )
    assert result.findings == ()
    assert torch.equal(d.double(), reference(inputs, spec.problem))
