"""The wrapper of each generated Blackwell module: what it refuses, and how it packs scales.

What it shares with Hopper's is tested in ``test_wrapper.py``; here are operands of 4 and 8 bits and their
scales. All of it runs without a GPU, on CPU tensors that claim to be on one; nothing is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from blackwell_modules import module_and_spec
from drawn import random_inputs
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from fake_triton import refusal
from modules import BLACKWELL_SPECS
from right_kernel import pack_scales
from torch import Tensor

from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.plan.access import TensorAccess
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec import SpecFile, load_spec

pytestmark = pytest.mark.quick

M, N, K = 130, 24, 384


class SecondCuda(Cuda):
    """The same, of the second GPU."""

    device = property(lambda self: torch.device("cuda", 1))  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class Wrapper:
    """A module whose kernel is never launched, and legal arguments for it: M = 130, N = 24, K = 384."""

    module: ModuleType
    spec: SpecFile

    def call(self, **changed: Any) -> Tensor:
        """Call ``matmul`` with legal arguments, but for those that are given."""
        arguments = {"a": self.a(), "b": self.b(), **self.extras(), **changed}
        a, b = arguments.pop("a"), arguments.pop("b")
        return self.module.matmul(a, b, **arguments)

    def matrix(self, rows: int, columns: int, dtype: torch.dtype, stride: int | None = None) -> Tensor:
        """Zeros [rows, columns], by default as few elements apart as are whole units of 32 bytes."""
        unit = 32 // dtype.itemsize
        stride = ceil(columns / unit) * unit if stride is None else stride
        storage = torch.zeros(rows * max(stride, columns), dtype=torch.uint8).repeat(dtype.itemsize)
        return storage.view(dtype).as_subclass(Cuda).as_strided((rows, columns), (stride, 1))

    def bytes_of_k(self, name: str, k: int) -> int:
        return k // 2 if self.dtype(name) == torch.uint8 else k

    def dtype(self, name: str) -> torch.dtype:
        return TORCH_DTYPES[(self.spec.spec.operands.a if name == "a" else self.spec.spec.operands.b).dtype]

    def a(self, m: int = M, k: int = K, stride: int | None = None) -> Tensor:
        return self.matrix(m, self.bytes_of_k("a", k), self.dtype("a"), stride)

    def b(self, k: int = K, n: int = N, stride: int | None = None) -> Tensor:
        return self.matrix(n, self.bytes_of_k("b", k), self.dtype("b"), stride).T

    def vector(self, name: str) -> int:
        operand = self.spec.spec.operands.a if name[0] == "a" else self.spec.spec.operands.b
        assert operand.scale is not None
        return 16 if operand.scale.format == "nvfp4" else 32

    def scale_dtype(self, name: str) -> torch.dtype:
        return torch.float8_e4m3fn if self.vector(name) == 16 else torch.float8_e8m0fnu

    def scales(self, name: str, rows: int, k: int = K) -> Tensor:
        made = torch.zeros(rows, ceil(k / self.vector(name)), dtype=torch.uint8)
        return made.view(self.scale_dtype(name)).as_subclass(Cuda)

    def extras(self, m: int = M, n: int = N, k: int = K) -> dict[str, Tensor]:
        made = {"a_scale": self.scales("a_scale", m, k), "b_scale": self.scales("b_scale", n, k)}
        problem = self.spec.problem
        if problem.c:
            made["c"] = self.matrix(m, n, TORCH_DTYPES[problem.c.name])
        for name in problem.vectors:
            length = m if OPERATIONS[name].along == "m" else n
            made[name] = self.matrix(1, length, TORCH_DTYPES[problem.vector_dtype(name).name])[0]
        if "tensor_scale" in self.spec.spec.epilogue.ops:
            made["tensor_scale"] = torch.ones(1).as_subclass(Cuda)
        return made


SCALED = [path for path in BLACKWELL_SPECS if load_spec(path).spec.operands.a.scale is not None]


def of(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("wrapper", paths, ids=lambda path: path.stem, indirect=True)


@pytest.fixture
def wrapper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Wrapper:
    module, spec = module_and_spec(request.param)
    on_a_fake_gpu(monkeypatch, (10, 0))

    def launch(*arguments: object) -> None:
        raise AssertionError(f"launched with {arguments}")

    launch_into(module, launch)
    return Wrapper(module, spec)


# --- what it refuses

Case = tuple[Callable[[Wrapper], dict[str, Any]], str]
CODES = torch.uint8


def columns_of(wrapper: Wrapper, name: str) -> int:
    """384 / 32 = 12 scales in a row, or 384 / 16 = 24."""
    return {32: 12, 16: 24}[wrapper.vector(name)]


def wrong_type(wrapper: Wrapper) -> dict[str, tuple[dict[str, Any], str, str]]:
    """Arguments of the wrong type, with the name and what is found."""
    scale, scales = wrapper.scale_dtype("a_scale"), wrapper.scales("a_scale", M)
    other = torch.float8_e8m0fnu if scale == torch.float8_e4m3fn else torch.float8_e4m3fn
    fp32 = torch.ones(N, columns_of(wrapper, "b_scale")).as_subclass(Cuda)
    return {
        "a is bf16": ({"a": wrapper.a().bfloat16()}, "a", "torch.bfloat16"),
        "a is int8": ({"a": wrapper.a().view(torch.int8)}, "a", "torch.int8"),
        "b is int8": ({"b": wrapper.b().view(torch.int8)}, "b", "torch.int8"),
        "a is torch's own pair of e2m1": (
            {"a": wrapper.a().view(torch.float4_e2m1fn_x2)},
            "a",
            "torch.float4_e2m1fn_x2",
        ),
        "scales are bytes": ({"a_scale": scales.view(CODES)}, "a_scale", "torch.uint8"),
        "scales are of the other type": ({"a_scale": scales.view(other)}, "a_scale", f"{other}"),
        "scales are fp32": ({"b_scale": fp32}, "b_scale", "torch.float32"),
        "scales are nothing": ({"b_scale": None}, "b_scale", "NoneType"),
        "out is fp64": ({"out": torch.zeros(M, N).double().as_subclass(Cuda)}, "out", "torch.float64"),
    }


@of(SCALED)
def test_a_wrong_type_is_refused(wrapper: Wrapper) -> None:
    for changed, name, found in wrong_type(wrapper).values():
        with pytest.raises(TypeError, match=refusal(name, found)):
            wrapper.call(**changed)


def wrong_scales(wrapper: Wrapper) -> dict[str, tuple[dict[str, Any], str, str]]:
    """Scales of the wrong shape, layout or place, with the name and what is found."""
    plain, columns = wrapper.scales("a_scale", M), columns_of(wrapper, "a_scale")
    packed = wrapper.module.pack_scales(plain)
    blocks = columns // 4
    return {
        "a row too few": ({"a_scale": plain[:-1]}, "a_scale", f"({M - 1}, {columns})"),
        "a column too many": (
            {"b_scale": wrapper.scales("b_scale", N, K + wrapper.vector("b_scale"))},
            "b_scale",
            f"({N}, {columns_of(wrapper, 'b_scale') + 1})",
        ),
        "transposed": ({"a_scale": plain.T}, "a_scale", f"({columns}, {M})"),
        "flat": ({"a_scale": packed.flatten()}, "a_scale", f"({2 * blocks * 512},)"),
        "a block too few": ({"a_scale": packed[:, :1]}, "a_scale", f"(1, 1, {blocks}, 2, 256)"),
        "the other operand's": ({"b_scale": plain}, "b_scale", f"({M}, {columns})"),
        "packed, not contiguous": (
            {"a_scale": packed.transpose(1, 2).contiguous().transpose(1, 2)},
            "a_scale",
            f"({2 * blocks * 512}, 512, 1024, 256, 1)",
        ),
        "on another GPU": ({"a_scale": plain.as_subclass(SecondCuda)}, "a_scale", "cuda:1"),
        "on the CPU": ({"b_scale": wrapper.scales("b_scale", N).as_subclass(Tensor)}, "b_scale", "cpu"),
    }


@of(SCALED)
def test_wrong_scales_are_refused(wrapper: Wrapper) -> None:
    for changed, name, found in wrong_scales(wrapper).values():
        with pytest.raises(ValueError, match=refusal(name, found)):
            wrapper.call(**changed)


@of(SCALED)
def test_packed_scales_that_start_anywhere_are_refused(wrapper: Wrapper) -> None:
    packed = wrapper.module.pack_scales(wrapper.scales("a_scale", M))
    storage = torch.zeros(packed.numel() + 1, dtype=CODES)
    moved = storage[1:].view(packed.dtype).view(packed.shape).as_subclass(Cuda)
    past = moved.data_ptr() % 16
    with pytest.raises(ValueError, match=refusal("a_scale", f"{past}")):
        wrapper.call(a_scale=moved)


@of(SCALED)
def test_scales_are_keywords_that_must_be_given(wrapper: Wrapper) -> None:
    extras = wrapper.extras()
    for name in ("a_scale", "b_scale"):
        some = {key: value for key, value in extras.items() if key != name}
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'$"):
            wrapper.module.matmul(wrapper.a(), wrapper.b(), **some)
    with pytest.raises(TypeError, match="positional"):
        wrapper.module.matmul(wrapper.a(), wrapper.b(), *extras.values())


def wrong_operands(wrapper: Wrapper) -> dict[str, tuple[dict[str, Any], str, str]]:
    """K-major operands of bytes of the wrong layout or extents, with the name and what is found."""
    a_columns, b_rows = wrapper.bytes_of_k("a", K), wrapper.bytes_of_k("b", K)
    b_short = wrapper.bytes_of_k("b", K - 128)
    # Where A alone is packed, or B alone, K is not the extent of both: it is held against the other's last.
    alike = (wrapper.dtype("a") == CODES) == (wrapper.dtype("b") == CODES)
    name, found = ("b", f"[{b_short}, 24]") if alike else ("a and b", f"{K} and {K - 128}")
    turned_b = wrapper.matrix(b_rows, 32, wrapper.dtype("b"))[:, :N]
    turned_a = wrapper.matrix(a_columns, 160, wrapper.dtype("a"))[:, :M].T
    return {
        "b is not transposed": ({"b": turned_b}, "b", "strides (32, 1)"),
        "a is M-contiguous": ({"a": turned_a}, "a", "strides (1, 160)"),
        "K differs": ({"b": wrapper.b(k=K - 128)}, name, found),
        "a's row stride is odd": ({"a": wrapper.a(stride=a_columns + 8)}, "a", f"{a_columns + 8}"),
        "b's row stride is odd": ({"b": wrapper.b(stride=b_rows + 8)}, "b", f"{b_rows + 8}"),
        "a is a vector": ({"a": wrapper.a()[0]}, "a", f"shape [{a_columns}]"),
        "a is on the CPU": ({"a": wrapper.a().as_subclass(Tensor)}, "a", "cpu"),
        "out is of another shape": (
            {"out": wrapper.matrix(M, 32, wrapper.module.ARGUMENTS["out"]["dtype"])},
            "out",
            "[130, 32]",
        ),
    }


@of(SCALED)
def test_wrong_operands_are_refused(wrapper: Wrapper) -> None:
    for changed, name, found in wrong_operands(wrapper).values():
        with pytest.raises(ValueError, match=refusal(name, found)):
            wrapper.call(**changed)


PADDED = [path for path in SCALED if TensorAccess(load_spec(path).problem).k_multiple == 128]
PACKED = [path for path in SCALED if TensorAccess(load_spec(path).problem).k_multiple == 2]


def test_there_are_modules_of_each_packing() -> None:
    assert {path.stem for path in PADDED} == {
        "b200_mxfp4_mxfp8",
        "b200_mxfp4_mxfp8_one_cta",
        "b200_mxfp8_mxfp4",
        "b200_mxfp8_mxfp4_one_cta",
    }
    assert {path.stem[5:10] for path in PACKED} == {"mxfp4", "nvfp4"}


@of(PADDED)
@pytest.mark.parametrize("k", [2, 64, 130, 448])
def test_a_k_that_is_no_multiple_of_128_is_refused_where_tma_pads(wrapper: Wrapper, k: int) -> None:
    with pytest.raises(ValueError, match=refusal("a and b", f"{k} and {k}")):
        wrapper.call(a=wrapper.a(k=k), b=wrapper.b(k=k), **wrapper.extras(k=k))


@of(PADDED)
def test_an_operand_that_tma_pads_starts_and_steps_by_32_bytes(wrapper: Wrapper) -> None:
    padded = "a" if wrapper.spec.problem.a.padded else "b"
    rows = {"a": M, "b": N}[padded]
    storage = torch.zeros(rows * 224 + 64, dtype=CODES)
    start = -storage.data_ptr() % 32 + 16
    moved = storage.as_subclass(Cuda).as_strided((rows, K // 2), (224, 1), start)
    with pytest.raises(ValueError, match=refusal(padded, "16")):
        wrapper.call(**{padded: moved if padded == "a" else moved.T})
    # 208 bytes are 13 units of 16.
    stepped = wrapper.a(stride=208) if padded == "a" else wrapper.b(stride=208)
    with pytest.raises(ValueError, match=refusal(padded, "208")):
        wrapper.call(**{padded: stepped})


@of(PACKED)
def test_any_even_k_is_taken_where_bytes_stay_packed(
    wrapper: Wrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[Any] = []

    def launch(*arguments: Any) -> None:
        launched.append(dict(zip(wrapper.module.matmul_kernel.arg_names, arguments[-1], strict=False)))

    launch_into(wrapper.module, launch)
    for k in (2, 34, 62, 130):
        wrapper.call(a=wrapper.a(k=k), b=wrapper.b(k=k), **wrapper.extras(k=k))
        made = launched.pop()
        assert made["a_desc"].shape == (M, k // 2)
        assert made["b_desc"].shape == (N, k // 2)
        columns = ceil(k / wrapper.vector("a_scale"))
        assert made["a_scale_desc"].shape == (1, 2, ceil(columns / 4), 2, 256)
        assert made["b_scale_desc"].shape == (1, 1, ceil(columns / 4), 2, 256)


@of(SCALED)
def test_nothing_is_launched_for_an_empty_result_and_no_k_gives_zeros(wrapper: Wrapper) -> None:
    problem = wrapper.spec.problem
    for m, n, k in (0, N, K), (M, 0, K), (M, N, 0), (0, 0, 0):
        if k == 0 and (problem.c or problem.vectors):
            continue  # refused
        result = wrapper.call(a=wrapper.a(m, k), b=wrapper.b(k, n), **wrapper.extras(m, n, k))
        assert result.shape == (m, n)
        if k == 0:
            assert torch.count_nonzero(result.float()) == 0


READING = [path for path in SCALED if load_spec(path).problem.vectors or load_spec(path).spec.operands.c]


@of(READING)
def test_no_k_is_refused_where_the_epilogue_would_make_something_of_no_product(wrapper: Wrapper) -> None:
    with pytest.raises(ValueError, match=r"^a must have a K of 1 or more"):
        wrapper.call(a=wrapper.a(M, 0), b=wrapper.b(0, N), **wrapper.extras(M, N, 0))


@pytest.mark.parametrize("path", BLACKWELL_SPECS, ids=lambda path: path.stem)
def test_on_another_gpu_the_module_says_which_it_needs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, spec = module_and_spec(path)
    on_a_fake_gpu(monkeypatch, (9, 0))
    inputs = random_inputs((5, 32, 128), spec.problem, torch.Generator().manual_seed(0))
    extras = {name: tensor.as_subclass(Cuda) for name, tensor in inputs.extras.items()}
    with pytest.raises(ValueError, match=refusal("this kernel", "NVIDIA X: (9, 0)")):
        module.matmul(inputs.a.as_subclass(Cuda), inputs.b.as_subclass(Cuda), **extras)


# --- scales


@pytest.mark.check
@of(SCALED)
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (128, 4), (129, 5), (300, 22), (31, 3), (500, 20), (0, 4), (4, 0)]
)
def test_scales_are_packed_as_defined_element_by_element(wrapper: Wrapper, rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(1, 256, (rows, columns + 3), generator=generator, dtype=torch.uint8)
    dtype = wrapper.scale_dtype("a_scale")
    plain = codes[:, :columns].view(dtype)  # rows are strided
    packed = wrapper.module.pack_scales(plain)
    assert packed.shape == (1, ceil(rows / 128), ceil(columns / 4), 2, 256)
    assert packed.dtype == dtype
    assert packed.is_contiguous()
    assert torch.equal(packed.view(CODES), pack_scales(plain).view(CODES))
    # Every code is there once, and the rest is zeros.
    assert torch.count_nonzero(packed.view(CODES)) == rows * columns


@of(SCALED[:1])
def test_where_a_scale_lies_is_counted_by_hand(wrapper: Wrapper) -> None:
    codes = torch.zeros(300, 9, dtype=CODES)
    # Row 165 is row 37 of the second block of 128: lane 37 - 32 = 5, the second of its four rows. Column 6 is
    # the third of the second block of 4: 5 * 16 + 1 * 4 + 2 = 86 of the first half of 256.
    codes[165, 6] = 7
    # Row 299 is row 43 of the third block: lane 11, second row. Column 8 is the first of the third 4.
    codes[299, 8] = 9
    # Row 127: lane 31, the fourth row. 31 * 16 + 3 * 4 + 3 = 511, which is 255 of the second half.
    codes[127, 3] = 11
    packed = wrapper.module.pack_scales(codes.view(wrapper.scale_dtype("a_scale"))).view(CODES)
    assert packed[0, 1, 1, 0, 86] == 7
    assert packed[0, 2, 2, 0, 11 * 16 + 4] == 9
    assert packed[0, 0, 0, 1, 255] == 11
    assert packed.sum() == 27


@of(SCALED)
def test_packing_and_plain_scales_tell_tma_the_same(
    wrapper: Wrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[Any] = []

    def launch(*arguments: Any) -> None:
        made = dict(zip(wrapper.module.matmul_kernel.arg_names, arguments[-1], strict=False))
        launched.append([(made[name].shape, made[name].strides) for name in ("a_scale_desc", "b_scale_desc")])

    launch_into(wrapper.module, launch)
    extras = wrapper.extras()
    packed = {name: wrapper.module.pack_scales(extras[name]) for name in ("a_scale", "b_scale")}
    wrapper.call(**extras)
    wrapper.call(**{**extras, **packed})
    assert launched[0] == launched[1]
    blocks = columns_of(wrapper, "a_scale") // 4
    assert launched[0][0] == ((1, 2, blocks, 2, 256), (2 * blocks * 512, blocks * 512, 512, 256, 1))
