"""The wrapper of each generated module: what it refuses, what it hands to TMA, and how often it does so.

Most of it is the same for every module and is tested on the plain ones: persistent, both operands K-major and
of 16 bits, no epilogue. What else a wrapper takes has a section of its own. All but the last section runs
without a GPU: a `Cuda` tensor is a CPU tensor that claims to be on one.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda, SecondCuda, cuda, launch_into, on_a_fake_gpu
from fake_triton import on_a_fake_driver, refusal
from hopper import hopper
from modules import HOPPER_SPECS, SPECS, made, module_file, spec_file
from torch import Tensor
from torch.autograd import forward_ad
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
from triton.compiler import compiler  # pyright: ignore[reportMissingTypeStubs]

from gemmgen.device import captured_graph
from gemmgen.features.split_k.planning import partial_bytes
from gemmgen.module import MatmulFunction, import_generated, matmul_of
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.product import Product, make

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def is_plain(plan: WgmmaKernel) -> bool:
    """Whether a kernel computes A @ B, of 16-bit matrices as torch.nn.Linear has them."""
    problem = plan.problem
    k_major = (problem.a.major, problem.b.major) == ("k", "k")
    plain = plan.persistent and plan.splits == 1 and not problem.transforms and not problem.copies_misaligned
    return plain and k_major and problem.a.dtype.bits == 16 and not (problem.d_scale or problem.b.decoded)


PLAIN = [spec for spec in HOPPER_SPECS if is_plain(hopper(made(spec).plan))]


@pytest.fixture(scope="session", params=PLAIN, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each plain committed spec."""
    return made(request.param)


ALIGNMENT_BYTES = 16
WRAPPER_LINES = 128
TABLE_LINES = 18
"""Lines more of a module of W4A8: `pack_weight` also makes a scale for each column, and rounds to it."""
SM_COUNT = 132
H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=SM_COUNT)


@dataclass(frozen=True)
class Operands:
    """Makes legal matrices of one module's dtypes: M = 4, N = 24, K = 16 unless told otherwise."""

    ab: torch.dtype
    d: torch.dtype
    kind: type[Tensor] = Tensor

    def rows(
        self, rows: int, columns: int, stride: int | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Return zeros [rows, columns], rows `stride` elements apart, by default the fewest legal."""
        dtype = dtype or self.ab
        unit = ALIGNMENT_BYTES // dtype.itemsize
        stride = ceil(columns / unit) * unit if stride is None else stride
        storage = torch.zeros(rows * max(stride, columns, 1), dtype=dtype).as_subclass(self.kind)
        return storage.as_strided((rows, columns), (stride, 1))

    def a(self, m: int = 4, k: int = 16, stride: int | None = None) -> Tensor:
        return self.rows(m, k, stride)

    def b(self, k: int = 16, n: int = 24, stride: int | None = None) -> Tensor:
        return self.rows(n, k, stride).T

    def out(self, m: int = 4, n: int = 24, stride: int | None = None) -> Tensor:
        return self.rows(m, n, stride, self.d)


@pytest.fixture
def operands(product: Product) -> Operands:
    plan = hopper(product.plan)
    return Operands(TORCH_DTYPES[plan.problem.a.dtype.name], TORCH_DTYPES[plan.problem.d.name], Cuda)


def import_module(product: Product) -> ModuleType:
    return import_generated(module_file(product.source.stem))


@pytest.fixture
def module(product: Product) -> ModuleType:
    """Each committed module, executed afresh: its caches are empty."""
    return import_module(product)


@pytest.fixture
def matmul(module: ModuleType) -> MatmulFunction:
    return matmul_of(module)


# --- what it refuses

Arguments = tuple[object, ...]
"""a, b and, where it matters, out."""


def misaligned(matrix: Tensor) -> Tensor:
    """The same matrix, one element further in a storage that is large enough."""
    rows, columns = matrix.shape
    storage = matrix.new_zeros(rows * (columns + ALIGNMENT_BYTES))
    return storage.as_strided((rows, columns), (columns, 1), 1)


def overlapping(matrix: Tensor) -> Tensor:
    """The first row, over and over."""
    return matrix[:1].expand(matrix.shape)


def huge(dtype: torch.dtype, *shape: int) -> Tensor:
    """A matrix of one element, over and over, where a whole one would fill the machine."""
    return torch.zeros((), dtype=dtype).as_subclass(Cuda).expand(shape)


def nowhere(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


WRONG_TYPE: dict[str, tuple[Callable[[Operands], Arguments], str, str]] = {
    "a is a list": (lambda o: ([[1.0]], o.b()), "a", "list"),
    "a is nothing": (lambda o: (None, o.b()), "a", "NoneType"),
    "b is a number": (lambda o: (o.a(), 1.0), "b", "float"),
    "out is a list": (lambda o: (o.a(), o.b(), [[1.0]]), "out", "list"),
    "a is fp64": (lambda o: (o.a().double(), o.b()), "a", "torch.float64"),
    "b is int8": (lambda o: (o.a(), o.b().char()), "b", "torch.int8"),
    "out is fp64": (lambda o: (o.a(), o.b(), o.out().double()), "out", "torch.float64"),
    "a is sparse": (lambda o: (o.a().as_subclass(Tensor).to_sparse(), o.b()), "a", "sparse_coo {ab}"),
}

WRONG_VALUE: dict[str, tuple[Callable[[Operands], Arguments], str, str]] = {
    # dimensions
    "a is a vector": (lambda o: (o.a()[0], o.b()), "a", "shape [16]"),
    "a is a scalar": (lambda o: (o.a()[0, 0], o.b()), "a", "shape []"),
    "b is a batch": (lambda o: (o.a(), o.b()[None]), "b", "shape [1, 16, 24]"),
    "out is a batch": (lambda o: (o.a(), o.b(), o.out()[None]), "out", "shape [1, 4, 24]"),
    # extents
    "m is huge": (lambda o: (huge(o.ab, 2**31, 16), o.b()), "a", "2147483648"),
    "k is huge": (lambda o: (huge(o.ab, 4, 2**31), o.b()), "a", "2147483648"),
    "n is huge": (lambda o: (o.a(), huge(o.ab, 16, 2**31)), "b", "2147483648"),
    "out is huge": (lambda o: (o.a(), o.b(), huge(o.d, 4, 2**31)), "out", "[4, 2147483648]"),
    # contiguity
    "a is M-contiguous": (lambda o: (o.rows(16, 8).T, o.b()), "a", "strides (1, 8)"),
    "b is not transposed": (lambda o: (o.a(), o.rows(16, 24)), "b", "strides (24, 1)"),
    "out is M-contiguous": (lambda o: (o.a(8), o.b(), o.out(24, 8).T), "out", "strides (1, 8)"),
    # rows
    "a repeats a row": (lambda o: (overlapping(o.a()), o.b()), "a", "rows of 16, 0 apart"),
    "a's rows overlap": (lambda o: (o.a().as_strided((4, 16), (8, 1)), o.b()), "a", "rows of 16, 8 apart"),
    "b repeats a column": (lambda o: (o.a(), overlapping(o.b().T).T), "b", "rows of 16, 0 apart"),
    "out repeats a row": (lambda o: (o.a(), o.b(), overlapping(o.out())), "out", "rows of 24, 0 apart"),
    "a's row stride is odd": (lambda o: (o.a(stride=17), o.b()), "a", "17"),
    "b's row stride is odd": (lambda o: (o.a(), o.b(stride=28)), "b", "28"),
    "k is odd": (lambda o: (o.a(k=9, stride=9), o.b(k=9)), "a", "9"),
    "out's row stride is odd": (lambda o: (o.a(), o.b(), o.out(stride=25)), "out", "25"),
    # addresses
    "a starts anywhere": (lambda o: (misaligned(o.a()), o.b()), "a", "2"),
    "b starts anywhere": (lambda o: (o.a(), misaligned(o.b().T).T), "b", "2"),
    "out starts anywhere": (lambda o: (o.a(), o.b(), misaligned(o.out())), "out", "{element}"),
    # a and b together
    "K differs": (lambda o: (o.a(k=16), o.b(k=32)), "b", "[32, 24]"),
    # out
    "out is too wide": (lambda o: (o.a(), o.b(), o.out(n=32)), "out", "[4, 32]"),
    "out is transposed": (lambda o: (o.a(), o.b(), o.out(24, 8)), "out", "[24, 8]"),
    # devices
    "a is on the CPU": (lambda o: (o.a().as_subclass(Tensor), o.b()), "a", "cpu"),
    "all are on the CPU": (
        lambda o: tuple(t.as_subclass(Tensor) for t in (o.a(), o.b(), o.out())),
        "a",
        "cpu",
    ),
    "a is on no device": (lambda o: (nowhere(o.ab, 4, 16), o.b()), "b", "cuda:0"),
    "b is on the CPU": (lambda o: (o.a(), o.b().as_subclass(Tensor)), "b", "cpu"),
    "b is on another GPU": (lambda o: (o.a(), o.b().as_subclass(SecondCuda)), "b", "cuda:1"),
    "out is on another GPU": (lambda o: (o.a(), o.b(), o.out().as_subclass(SecondCuda)), "out", "cuda:1"),
    # gradients
    "a requires grad": (lambda o: (o.a().requires_grad_(), o.b(), o.out()), "a", "grad"),
    "b requires grad": (lambda o: (o.a(), o.b().requires_grad_(), o.out()), "b", "grad"),
    "out requires grad": (lambda o: (o.a(), o.b(), o.out().requires_grad_()), "out", "grad"),
}


def call(matmul: MatmulFunction, arguments: Arguments) -> Tensor:
    untyped: Any = matmul
    a, b, *out = arguments
    return untyped(a, b, out=out[0] if out else None)


def shown(found: str, operands: Operands) -> str:
    return found.format(ab=operands.ab, element=operands.d.itemsize)


@pytest.fixture(scope="session")
def checks(product: Product) -> MatmulFunction:
    """The `matmul` of each module, which must refuse before it asks for a GPU, and before it launches."""
    module = import_module(product)

    def launch(*arguments: object) -> None:
        raise AssertionError(f"launched with {arguments}")

    launch_into(module, launch)
    return matmul_of(module)


@pytest.mark.parametrize("case", WRONG_TYPE)
def test_a_wrong_type_is_refused(checks: MatmulFunction, operands: Operands, case: str) -> None:
    arguments, name, found = WRONG_TYPE[case]
    with pytest.raises(TypeError, match=refusal(name, shown(found, operands))):
        call(checks, arguments(operands))


@pytest.mark.parametrize("case", WRONG_VALUE)
def test_a_wrong_value_is_refused(checks: MatmulFunction, operands: Operands, case: str) -> None:
    arguments, name, found = WRONG_VALUE[case]
    with pytest.raises(ValueError, match=refusal(name, shown(found, operands))):
        call(checks, arguments(operands))


@pytest.mark.parametrize("name", ["a", "b"])
def test_without_a_backward_a_call_without_out_of_what_requires_grad_is_refused(
    checks: MatmulFunction, product: Product, operands: Operands, name: str
) -> None:
    if product.plan.problem.backward:  # tests/test_backward.py has its calls
        return
    given = {"a": operands.a(), "b": operands.b()}
    given[name].requires_grad_()
    with pytest.raises(ValueError, match=f"^{name} must not require grad"):
        call(checks, (*given.values(),))


def test_an_output_that_tma_would_write_past_is_refused(checks: MatmulFunction, operands: Operands) -> None:
    # 9 columns end inside a unit of 16 bytes for either width of element.
    with pytest.raises(ValueError, match=refusal("out", "9")):
        checks(operands.a(), operands.b(n=9), out=operands.out(n=9))


def test_the_largest_extents_pass_the_checks(
    checks: MatmulFunction, product: Product, operands: Operands
) -> None:
    plan = hopper(product.plan)
    limit = 2**31 - max(plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k)
    with pytest.raises(ValueError, match=refusal("a", "strides (0, 0)")):
        checks(huge(operands.ab, 4, limit), operands.b())
    with pytest.raises(ValueError, match=refusal("a", f"{limit + 1}")):
        checks(huge(operands.ab, 4, limit + 1), operands.b())


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_tensor_whose_memory_was_given_back_is_refused(
    checks: MatmulFunction, operands: Operands, name: str
) -> None:
    given = {"a": operands.a(), "b": operands.b(), "out": operands.out()}
    given[name].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=refusal(name, "a Cuda at 0")):
        checks(given["a"], given["b"], out=given["out"])


# Torch makes a dual with a part of its own that it has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_forward_mode_dual_is_refused(checks: MatmulFunction, operands: Operands, name: str) -> None:
    given = {"a": operands.a(), "b": operands.b(), "out": operands.out()}
    text = f"^{name} must be no forward-AD dual"
    with forward_ad.dual_level():
        plain = given[name].as_subclass(Tensor)
        make_dual: Any = vars(forward_ad)["make_dual"]
        given[name] = make_dual(plain, torch.ones_like(plain)).as_subclass(Cuda)
        with torch.no_grad(), pytest.raises(ValueError, match=text):
            checks(given["a"], given["b"], out=given["out"])


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_negated_view_is_refused(checks: MatmulFunction, operands: Operands, name: str) -> None:
    given = {"a": operands.a(), "b": operands.b(), "out": operands.out()}
    negated: Any = vars(torch)["_neg_view"]
    given[name] = negated(given[name].as_subclass(Tensor)).as_subclass(Cuda)
    with pytest.raises(ValueError, match=refusal(name, "a negated view")):
        checks(given["a"], given["b"], out=given["out"])


def test_out_is_a_keyword(checks: MatmulFunction, operands: Operands) -> None:
    untyped: Any = checks
    with pytest.raises(TypeError, match="positional"):
        untyped(operands.a(), operands.b(), operands.out())


# --- what it launches


@dataclass(frozen=True)
class Launch:
    """One launch of a module: of as many programs as there are tiles, unless clusters are too few."""

    programs: int
    descriptors: list[Any]


@pytest.fixture
def launches(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of a module on a fake GPU."""
    on_a_fake_gpu(monkeypatch)
    made: list[Launch] = []

    def launch(programs: int, descriptors: list[Any]) -> None:
        made.append(Launch(programs, descriptors))

    launch_into(module, launch)
    return made


@pytest.mark.parametrize("shape", [(0, 24, 16), (4, 0, 16), (0, 0, 16), (0, 24, 0), (0, 0, 0)])
@pytest.mark.parametrize("given", [False, True], ids=["own output", "out="])
def test_an_empty_result_launches_nothing(
    matmul: MatmulFunction,
    operands: Operands,
    launches: list[Launch],
    shape: tuple[int, int, int],
    given: bool,
) -> None:
    m, n, k = shape
    out = operands.out(m, n) if given else None
    result = matmul(operands.a(m, k), operands.b(k, n), out=out)
    assert result.shape == (m, n)
    assert result.dtype == operands.d
    assert result is out or not given
    assert launches == []


def test_no_rows_make_no_output_illegal(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch]
) -> None:
    out = operands.out(0, 9)
    assert matmul(operands.a(0), operands.b(n=9), out=out) is out
    assert launches == []


@pytest.mark.parametrize("n", [24, 9])
def test_no_k_gives_zeros_without_a_launch(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch], n: int
) -> None:
    result = matmul(operands.a(k=0), operands.b(k=0, n=n))
    assert result.shape == (4, n)
    assert torch.equal(result, operands.out(4, n))
    assert launches == []


def test_no_k_zeroes_the_output_that_is_given(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch]
) -> None:
    out = operands.out().fill_(7.0)
    assert matmul(operands.a(k=0), operands.b(k=0), out=out) is out
    assert torch.count_nonzero(out) == 0
    assert launches == []


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 100, 257])
def test_a_result_has_rows_that_tma_can_write(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch], n: int
) -> None:
    result = matmul(operands.a(), operands.b(n=n))
    unit = ALIGNMENT_BYTES // operands.d.itemsize
    assert result.shape == (4, n)
    assert result.stride() == (ceil(n / unit) * unit, 1)
    assert result.data_ptr() % ALIGNMENT_BYTES == 0
    # The padding is the result's own storage: a store may fill its last unit.
    assert result.untyped_storage().nbytes() >= 4 * result.stride(0) * operands.d.itemsize
    assert launches[0].descriptors[-1].strides == result.stride()


def test_a_given_output_is_returned_and_written(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch]
) -> None:
    out = operands.out(stride=40)
    assert matmul(operands.a(), operands.b(), out=out) is out
    d_desc = launches[0].descriptors[-1]
    assert (d_desc.base.data_ptr(), d_desc.strides) == (out.data_ptr(), (40, 1))


def test_tma_is_told_the_logical_matrices_and_the_boxes_of_the_plan(
    matmul: MatmulFunction, product: Product, operands: Operands, launches: list[Launch]
) -> None:
    plan = hopper(product.plan)
    a, b, out = operands.a(5, 40, stride=64), operands.b(40, 24, stride=48), operands.out(5, 24, stride=32)
    matmul(a, b, out=out)
    a_desc, *b_descs, d_desc = launches[0].descriptors
    parts = plan.column_parts
    tensors = (a, *[b] * len(parts), out)
    assert [d.base.data_ptr() for d in launches[0].descriptors] == [t.data_ptr() for t in tensors]
    assert [d.base.dtype for d in launches[0].descriptors] == [t.dtype for t in tensors]
    assert (a_desc.shape, a_desc.strides) == ((5, 40), (64, 1))
    assert all((b.shape, b.strides) == ((24, 40), (48, 1)) for b in b_descs)  # as stored
    assert (d_desc.shape, d_desc.strides) == ((5, 24), (32, 1))
    assert a_desc.block_shape == [plan.consumer_tile_m, plan.cta_tile_k]
    boxes = [[columns * plan.cluster_n, plan.cta_tile_k] for columns in parts]
    assert [b_desc.block_shape for b_desc in b_descs] == boxes
    stored = plan.subtile_n if plan.subtiles > 1 else plan.program_tile_n
    assert d_desc.block_shape == [plan.consumer_tile_m, stored]
    swizzles = [plan.a_swizzle_bytes, *[plan.b_swizzle_bytes] * len(parts), plan.d_swizzle_bytes]
    assert [d.layout.swizzle_byte_width for d in launches[0].descriptors] == swizzles
    bases = [plan.bases(0, None), *[plan.bases(None, 0)] * len(parts), plan.bases(0, 1)]
    assert [[list(basis) for basis in d.layout.cga_layout] for d in launches[0].descriptors] == bases


@pytest.mark.parametrize(
    ("rows", "columns", "strides", "row_stride"),
    [
        (1, 16, (3, 1), 16),  # a single row has no stride
        (1, 9, (5, 1), 16),  # nor does its length matter
        (1, 1, (1, 1), 8),
        (1, 1, (7, 5), 8),
        (4, 1, (8, 1), 8),  # in a single column nothing is contiguous
        (4, 1, (8, 5), 8),
        (4, 1, (24, 0), 24),
    ],
)
def test_strides_that_no_element_needs_may_be_odd(
    matmul: MatmulFunction,
    operands: Operands,
    launches: list[Launch],
    rows: int,
    columns: int,
    strides: tuple[int, int],
    row_stride: int,
) -> None:
    def strided() -> Tensor:
        return operands.a(8, 64).as_strided((rows, columns), strides)

    matmul(strided(), operands.b(columns, 24))
    matmul(operands.a(4, columns), strided().T)
    a_desc, b_desc = launches[0].descriptors[0], launches[1].descriptors[1]
    for descriptor in (a_desc, b_desc):
        assert (descriptor.shape, descriptor.strides) == ((rows, columns), (row_stride, 1))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (128, 256), (129, 257), (1000, 3000)])
def test_every_tile_is_counted(
    matmul: MatmulFunction, product: Product, operands: Operands, launches: list[Launch], m: int, n: int
) -> None:
    matmul(operands.a(m), operands.b(n=n))
    plan = hopper(product.plan)
    tiles = ceil(m / plan.program_tile_m) * ceil(n / plan.program_tile_n)
    assert launches[0].programs == most(tiles, plan)


def most(programs: int, plan: WgmmaKernel) -> int:
    """As many programs, or as there are clusters of four."""
    return min(programs, 30) if plan.persistent and plan.cluster_size == 4 else programs


def test_a_parameter_is_an_operand_where_gradients_are_off(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch]
) -> None:
    a, b, out = (t.requires_grad_() for t in (operands.a(), operands.b(), operands.out()))
    with torch.no_grad():
        matmul(a, b, out=out)
    with torch.inference_mode():
        matmul(a, b)
    assert len(launches) == 2


# --- what it keeps


def test_a_second_call_is_launched_past_triton_with_the_same_maps(
    module: ModuleType,
    matmul: MatmulFunction,
    operands: Operands,
    product: Product,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = on_a_fake_driver(module, monkeypatch)
    a, b, out = operands.a(), operands.b(), operands.out()
    for _ in range(3):
        assert matmul(a, b, out=out) is out
    ((grid, _, descriptors),) = driver.jit
    assert len(descriptors) == len(driver.encoded) == 2 + len(product.plan.column_parts)
    first, second = driver.direct
    assert first == second
    assert (first.grid, first.stream) == (grid, driver.stream)
    described = [
        (
            d.base.data_ptr(),
            tuple(d.shape[::-1]),
            tuple(stride * d.base.element_size() for stride in d.strides[-2::-1]),
            tuple(d.block_shape[::-1]),
        )
        for d in descriptors
    ]
    assert [made[:4] for made in driver.encoded] == described


def test_another_matrix_at_the_same_address_gets_a_descriptor_of_its_own(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch]
) -> None:
    a = operands.a(8, 32)
    for view in (a, a[:4], a[:, :16], a.as_strided((8, 32), (32, 1))):
        matmul(view, operands.b(view.shape[1]))
    shapes = [launch.descriptors[0].shape for launch in launches]
    assert shapes == [(8, 32), (4, 32), (8, 16), (8, 32)]


def test_a_and_out_may_have_been_described_as_another_operand_before(
    matmul: MatmulFunction, operands: Operands, launches: list[Launch], product: Product
) -> None:
    # The same address, extents and stride as a, as b's rows, and, where the dtypes agree, as out.
    square = operands.rows(16, 16)
    matmul(square, square.T)
    a_desc, b_desc, *_ = launches[0].descriptors
    plan = hopper(product.plan)
    assert a_desc.block_shape == [plan.consumer_tile_m, plan.cta_tile_k]
    assert b_desc.block_shape == [plan.column_parts[0] * plan.cluster_n, plan.cta_tile_k]


@pytest.mark.parametrize("given", [False, True], ids=["own output", "out="])
def test_no_cache_keeps_a_tensor_alive(
    module: ModuleType,
    matmul: MatmulFunction,
    operands: Operands,
    monkeypatch: pytest.MonkeyPatch,
    given: bool,
) -> None:
    driver = on_a_fake_driver(module, monkeypatch)
    a, b = operands.a(), operands.b()
    out = matmul(a, b, out=operands.out() if given else None)
    driver.jit.clear()
    storages = [weakref.ref(tensor.untyped_storage()) for tensor in (a, b, out)]
    tensors = [weakref.ref(tensor) for tensor in (a, b, out)]
    assert module.call.known.of_thread.ready
    assert all(ref() is not None for ref in tensors)
    del a, b, out
    assert [ref() for ref in (*tensors, *storages)] == [None] * 6


# --- the grid


class FakeKernel:
    """Stands for the compiled kernel, and for the function that compiles it."""

    def __init__(self, arguments: int) -> None:
        self.arguments = arguments
        self.compiled: list[dict[str, object]] = []
        self.grids: list[tuple[int, ...]] = []
        self.devices: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        self.devices.append(torch.cuda.current_device())

        def launch(*descriptors: object, **options: object) -> None:
            assert len(descriptors) == self.arguments
            self.compiled.append(options)

        return launch


@pytest.fixture
def kernel(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    """A kernel on a fake machine of two H100 SXM."""
    on_a_fake_gpu(monkeypatch)
    current = [0]

    @contextmanager
    def device(chosen: int) -> Generator[None]:
        before = current[0]
        current[0] = chosen
        yield
        current[0] = before

    fake = FakeKernel(len(module.matmul_kernel.arg_names))
    monkeypatch.setattr(module, "matmul_kernel", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    every_gpu(monkeypatch, get_device_properties=H200)
    return fake


def every_gpu(monkeypatch: pytest.MonkeyPatch, **answers: object) -> None:
    """Let functions of `torch.cuda` give the same answer for every device."""

    def always(answer: object) -> Callable[[int], object]:
        return lambda device: answer

    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, always(answer))


def resident(plan: WgmmaKernel) -> int:
    """Programs that 132 SMs hold: of clusters of four no more than the GPCs do."""
    return {1: SM_COUNT * plan.occupancy, 2: 66, 4: 30}[plan.cluster_size]


@pytest.mark.parametrize(
    ("tiles_m", "tiles_n"), [(1, 1), (1, 3), (5, 13), (66, 1), (11, 12), (7, 19), (300, 2)]
)
def test_as_many_programs_run_as_there_are_tiles_or_clusters_of_sms(
    matmul: MatmulFunction,
    product: Product,
    operands: Operands,
    kernel: FakeKernel,
    tiles_m: int,
    tiles_n: int,
) -> None:
    plan = hopper(product.plan)
    # One row and one column more than full tiles of all but the last.
    m, n = (tiles_m - 1) * plan.program_tile_m + 1, (tiles_n - 1) * plan.program_tile_n + 1
    matmul(operands.a(m, 8), operands.b(8, n))
    assert kernel.grids == [(min(tiles_m * tiles_n, resident(plan)), 1, 1)]


def test_the_kernel_has_the_warps_and_the_cluster_of_the_plan(
    matmul: MatmulFunction, product: Product, operands: Operands, kernel: FakeKernel
) -> None:
    matmul(operands.a(), operands.b())
    matmul(operands.a(300, 80), operands.b(80, 500))
    plan = hopper(product.plan)
    options, same = kernel.compiled
    assert options == same
    assert (options["num_warps"], options["num_ctas"]) == (plan.consumer_warps, plan.cluster_size)
    assert len(kernel.grids) == 2


def test_the_first_call_gives_triton_nothing_to_warn_of(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    backend = cast(Any, compiler).make_backend(GPUTarget("cuda", 90, 32))
    assert backend.parse_options(module.LAUNCH_OPTIONS).num_ctas == module.LAUNCH_OPTIONS["num_ctas"]


def test_the_operands_device_is_current_while_the_kernel_is_launched(
    matmul: MatmulFunction, operands: Operands, kernel: FakeKernel
) -> None:
    second = Operands(operands.ab, operands.d, SecondCuda)
    assert matmul(second.a(), second.b()).device == torch.device("cuda", 1)
    matmul(operands.a(), operands.b())
    assert kernel.devices == [1, 0]
    assert torch.cuda.current_device() == 0


def test_another_gpu_is_refused_on_every_call(
    matmul: MatmulFunction, operands: Operands, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_gpu(monkeypatch, get_device_properties=SimpleNamespace(name="NVIDIA B200", major=10, minor=0))
    text = r"^this kernel needs capability \(9, 0\), found NVIDIA B200: \(10, 0\)$"
    for _ in range(2):
        with pytest.raises(ValueError, match=text):
            matmul(operands.a(), operands.b())
    assert kernel.grids == []


# --- what some wrappers take besides


def other(stem: str) -> ModuleType:
    return import_generated(module_file(stem))


def launched(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The arguments of each launch of a module on a fake GPU."""
    on_a_fake_gpu(monkeypatch)
    made: list[list[Any]] = []

    def launch(programs: int, arguments: list[Any]) -> None:
        made.append(arguments)

    launch_into(module, launch)
    return made


def test_an_mn_major_operand_is_described_as_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    module = other("h100_bf16_nt")
    made = launched(module, monkeypatch)
    a, b = cuda(16, 8).T, cuda(16, 24)  # stored [K, M] and [K, N]
    matmul_of(module)(a, b)
    (a_desc, b_desc, _), *_ = made
    assert (a_desc.shape, a_desc.strides) == ((16, 8), (8, 1))
    assert (b_desc.shape, b_desc.strides) == ((16, 24), (24, 1))
    with pytest.raises(ValueError, match=r"^a must .+ found strides \(16, 1\)"):
        matmul_of(module)(cuda(8, 16), b)
    with pytest.raises(ValueError, match=r"^b must .+ found strides \(1, 16\)"):
        matmul_of(module)(a, cuda(24, 16).T)


WRONG_ADDENDS: dict[str, tuple[dict[str, Any], str]] = {
    "c of another shape": ({"c": cuda(4, 32)}, "c must have shape [4, 24], found [4, 32]"),
    "c of another device": (
        {"c": cuda(4, 24).as_subclass(Tensor)},
        "c must be on a's device cuda:0, found cpu",
    ),
    "a long bias": ({"column_bias": cuda(32)}, "column_bias must have shape [24], found [32]"),
    "a strided bias": (
        {"column_bias": cuda(48)[::2]},
        "column_bias must lie in memory as [N], found strides (2,)",
    ),
    "a bias that starts anywhere": (
        {"column_bias": cuda(25)[1:]},
        "column_bias must start at a multiple of 16 bytes, found 2 bytes past one",
    ),
    "a bias of another type": (
        {"column_bias": cuda(24, dtype=torch.float32)},
        "column_bias must be a tensor of torch.bfloat16, found torch.float32",
    ),
}


@pytest.mark.parametrize("case", WRONG_ADDENDS)
def test_what_the_epilogue_cannot_read_is_refused(case: str) -> None:
    wrong, message = WRONG_ADDENDS[case]
    arguments = {"c": cuda(4, 24), "column_bias": cuda(24)} | wrong
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        matmul_of(other("h100_bf16_residual"))(cuda(4, 16), cuda(24, 16).T, **arguments)


def test_a_tensor_s_scale_has_one_element() -> None:
    a, b = cuda(4, 16, dtype=torch.float8_e5m2), cuda(32, 16, dtype=torch.float8_e4m3fn).T
    with pytest.raises(ValueError, match=r"^tensor_scale must have shape \[1\], found \[2\]$"):
        matmul_of(other("h100_e5m2_e4m3"))(a, b, tensor_scale=cuda(2, dtype=torch.float32))


def test_more_than_a_single_tile_is_refused() -> None:
    text = r"^this kernel takes M, N and K up to 64, 128 and 64, found 65, 24 and 16$"
    with pytest.raises(ValueError, match=text):
        matmul_of(other("h100_bf16_single_tile"))(
            cuda(65, 16), cuda(24, 16).T, c=cuda(65, 24, dtype=torch.float32)
        )


def test_an_epilogue_of_no_k_is_computed_from_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    module = other("h100_bf16_residual")
    made = launched(module, monkeypatch)
    matmul_of(module)(cuda(4, 0), cuda(24, 0).T, c=cuda(4, 24), column_bias=cuda(24))
    a_desc, b_desc, *_ = made[0]
    assert (a_desc.shape, b_desc.shape) == ((4, 16), (24, 16))


def test_each_part_of_a_composed_tile_is_multiplied_with_zeros_where_there_is_no_k(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = other("h100_bf16_composed_three_consumers_bf16_out")
    made = launched(module, monkeypatch)
    matmul_of(module)(cuda(4, 0), cuda(0, 24), c=cuda(4, 24))
    a_desc, b_desc, b_1_desc, *_ = made[0]
    assert [d.shape for d in (a_desc, b_desc, b_1_desc)] == [(4, 16), (16, 24), (16, 24)]
    assert [d.block_shape[1] for d in (b_desc, b_1_desc)] == [64, 16]


def test_a_tiled_kernel_has_a_program_for_each_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    module, fake = other("h100_bf16_pipelined"), FakeKernel(3)
    on_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(module, "matmul_kernel", fake)
    every_gpu(monkeypatch, device=nullcontext(), get_device_properties=H200)
    matmul_of(module)(cuda(1000, 8), cuda(3000, 8).T)
    plan = make(ROOT / "specs" / "h100_bf16_pipelined.yaml").plan
    assert fake.grids == [(ceil(1000 / plan.program_tile_m) * ceil(3000 / plan.program_tile_n), 1, 1)]


def test_tma_rounds_fp32_operands_to_tf32_and_leaves_the_output_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = other("h100_tf32")
    made = launched(module, monkeypatch)
    matmul_of(module)(cuda(4, 16, dtype=torch.float32), cuda(24, 16, dtype=torch.float32).T)
    assert [descriptor.round_f32_to_tf32 for descriptor in made[0]] == [True, True, False]


# --- the module


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_what_follows_the_kernels_is_short(path: Path) -> None:
    source = module_file(path.stem).read_text()
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    last = "reduction_kernel" if made(path).plan.reduces_apart else "matmul_kernel"
    end = functions[last].end_lineno
    assert end is not None
    scale = made(path).plan.problem.b.scale
    is_by_table = scale is not None and scale.format.factor == "column_scale"
    assert len(source.splitlines()) - end <= WRAPPER_LINES + TABLE_LINES * is_by_table


def other_triton(version: str) -> str:
    """What a module says of a version of Triton that it was not verified with."""
    return (
        f"this kernel was verified with Triton 3.9 alone, found {version}: install triton~=3.9.0 "
        "in a folder of its own, or `gemmgen pack` the spec, whose kernels need no Triton at run time"
    )


@pytest.mark.check
@pytest.mark.parametrize("version", ["3.8.0", "3.8.10+git1a2b", "2.3.1", "4.0.0"])
def test_an_older_triton_is_named_before_any_name_of_it_is_missed(version: str, tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text(f'__version__ = "{version}"\n')
    (tmp_path / "h100_bf16.py").write_text(made(spec_file("h100_bf16")).module)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", "import h100_bf16"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.stderr.splitlines()[-1] == f"ImportError: {other_triton(version)}"


IMPORT_WITH = """
import importlib, json, sys, warnings
import triton
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    for triton.__version__ in sys.argv[1:]:
        sys.modules.pop("h100_bf16", None)
        for _ in range(2):
            module = importlib.import_module("h100_bf16")
            assert callable(module.matmul)
print(json.dumps([(each.category.__name__, str(each.message)) for each in caught]))
"""
"""A program that imports a module twice with each version of Triton, and prints the warnings."""


@pytest.mark.check
def test_a_newer_triton_is_warned_of_once_and_a_patch_is_not(tmp_path: Path) -> None:
    (tmp_path / "h100_bf16.py").write_text(made(spec_file("h100_bf16")).module)
    newer, patches = ["3.10.0", "3.10.0+git1a2b", "3.11.0rc1"], ["3.9.0", "3.9.1", "3.9.0+git1a2b"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}  # there is the launcher
    command = [sys.executable, "-B", "-c", IMPORT_WITH, *newer, *patches]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [["UserWarning", other_triton(version)] for version in newer]


# --- on a GPU

gpu = pytest.mark.gpu
FIRST = torch.device("cuda", 0)


@dataclass(frozen=True)
class Problem:
    """Matrices of -1, 0 and 1: with K of at most 128, every result is exact even in bf16."""

    product: Product
    device: torch.device = FIRST

    def rows(self, rows: int, columns: int, stride: int | None = None) -> Tensor:
        """Return random rows, `stride` elements apart; what lies between them is NaN."""
        dtype = TORCH_DTYPES[hopper(self.product.plan).problem.a.dtype.name]
        stride = ceil(columns / 8) * 8 if stride is None else stride
        storage = torch.full((max(rows, 1), stride), float("nan"), dtype=dtype, device=self.device)
        matrix = storage[:rows, :columns]
        return matrix.copy_(torch.randint(-1, 2, (rows, columns), device=self.device))

    def expected(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.double() @ b.double()).to(TORCH_DTYPES[hopper(self.product.plan).problem.d.name])


@pytest.fixture
def problem(product: Product) -> Iterator[Problem]:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    yield Problem(product)
    torch.cuda.synchronize()


@gpu
@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("m", [1, 2, 65])
def test_few_columns_are_right_on_the_gpu(matmul: MatmulFunction, problem: Problem, m: int, n: int) -> None:
    a, b = problem.rows(m, 8), problem.rows(n, 8).T
    assert torch.equal(matmul(a, b), problem.expected(a, b))


@gpu
@pytest.mark.parametrize("k", [1, 7, 8, 9, 63, 64, 65, 127, 128])
def test_every_k_is_right_on_the_gpu(matmul: MatmulFunction, problem: Problem, k: int) -> None:
    a, b = problem.rows(130, k), problem.rows(260, k).T
    assert torch.equal(matmul(a, b), problem.expected(a, b))


@gpu
@pytest.mark.parametrize(("rows", "columns", "strides"), [(1, 64, (3, 1)), (1, 9, (5, 1)), (9, 1, (8, 5))])
def test_strides_that_no_element_needs_change_nothing_on_the_gpu(
    matmul: MatmulFunction, problem: Problem, rows: int, columns: int, strides: tuple[int, int]
) -> None:
    a = problem.rows(16, 128).as_strided((rows, columns), strides)
    b = problem.rows(16, 128).as_strided((rows, columns), strides).T
    assert torch.equal(matmul(a, b), problem.expected(a, b))


@gpu
def test_wide_rows_are_right_on_the_gpu(matmul: MatmulFunction, problem: Problem) -> None:
    a, b = problem.rows(200, 72, stride=136), problem.rows(300, 72, stride=80).T
    assert torch.equal(matmul(a, b), problem.expected(a, b))


@gpu
@pytest.mark.parametrize("shape", [(0, 24, 16), (4, 0, 16), (4, 24, 0), (4, 9, 0), (0, 0, 0)])
def test_empty_matrices_are_right_on_the_gpu(
    matmul: MatmulFunction, problem: Problem, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = problem.rows(m, k), problem.rows(n, k).T
    result = matmul(a, b)
    assert result.device == FIRST
    assert torch.equal(result, problem.expected(a, b))


@gpu
def test_an_output_is_used_again_on_the_gpu(matmul: MatmulFunction, problem: Problem) -> None:
    dtype = TORCH_DTYPES[hopper(problem.product.plan).problem.d.name]
    storage = torch.full((202, 320), 7.0, dtype=dtype, device=FIRST)
    out = storage[1:201, 16:304]
    for _ in range(3):
        a, b = problem.rows(200, 72), problem.rows(288, 72).T
        assert matmul(a, b, out=out) is out
        assert torch.equal(out, problem.expected(a, b))
    out.fill_(7.0)
    assert torch.all(storage == 7.0)  # nothing beside the view was written


@gpu
def test_a_call_runs_on_the_current_stream(matmul: MatmulFunction, problem: Problem) -> None:
    a, b = problem.rows(256, 64), problem.rows(512, 64).T
    expected = problem.expected(a, b)
    late = a.clone()
    matmul(a, b)  # compiled, so that the launch below is not late itself
    a.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    sleep: Any = vars(torch.cuda)["_sleep"]
    with torch.cuda.stream(stream):
        sleep(50_000_000)  # about 25 ms: a launch on another stream would read the zeros
        a.copy_(late)
        result = matmul(a, b)
    stream.synchronize()
    assert torch.equal(result, expected)


@gpu
@pytest.mark.parametrize("first", [False, True], ids=["compiled before", "first call"])
def test_a_call_is_captured_into_a_graph(matmul: MatmulFunction, problem: Problem, first: bool) -> None:
    a, b = problem.rows(200, 72), problem.rows(300, 72).T
    if not first:
        matmul(a, b)
    torch.cuda.synchronize()
    with captured_graph() as graph:  # earlier tests have left kernels to unload
        result = matmul(a, b)
    for _ in range(2):
        a.copy_(problem.rows(200, 72))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, problem.expected(a, b))


@gpu
def test_each_of_two_gpus_computes_its_own(matmul: MatmulFunction, product: Product) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    results = [
        (matmul(a, b), problem.expected(a, b))
        for problem in (Problem(product, torch.device("cuda", 1)), Problem(product))
        for a, b in [(problem.rows(200, 72), problem.rows(300, 72).T)]
    ]
    assert torch.cuda.current_device() == 0
    for index, (result, expected) in zip((1, 0), results, strict=True):
        assert result.device.index == index
        assert torch.equal(result, expected)


DIVIDING_MODULES = tuple(spec.stem for spec in HOPPER_SPECS if hopper(made(spec).plan).splits > 1)
SPLIT_MODULES = tuple(stem for stem in DIVIDING_MODULES if not made(spec_file(stem)).plan.reduces_apart)
PARALLEL_MODULES = tuple(stem for stem in DIVIDING_MODULES if stem not in SPLIT_MODULES)
ORDERED_MODULES = tuple(stem for stem in SPLIT_MODULES if made(spec_file(stem)).plan.deterministic)
OF_MATRICES_ALONE = tuple(stem for stem in SPLIT_MODULES if len(made(spec_file(stem)).plan.arguments) == 5)
REPEATABLE_MODULES = (*ORDERED_MODULES, *PARALLEL_MODULES)
REPLAYS = 1_000


@pytest.mark.parametrize(("m", "n"), [(1, 1), (129, 257), (1000, 3000)])
@pytest.mark.parametrize("stem", OF_MATRICES_ALONE)
def test_every_part_of_every_tile_is_counted(
    stem: str, m: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_fake_gpu(monkeypatch)
    plan, module = hopper(made(spec_file(stem)).plan), import_generated(module_file(stem))
    launched: list[tuple[int, list[Any]]] = []

    def launch(parts: int, arguments: list[Any]) -> None:
        launched.append((parts, arguments))

    launch_into(module, launch)
    ab, d = (TORCH_DTYPES[dtype.name] for dtype in (plan.problem.a.dtype, plan.problem.d))
    operands = Operands(ab, d, Cuda)
    matmul_of(module)(operands.a(m), operands.b(n=n))
    ((parts, arguments),) = launched
    tiles_m, tiles_n = plan.tiles((m, n, 16))
    partials, counters = arguments[-2:]
    assert parts == most(tiles_m * tiles_n * plan.splits, plan)
    assert counters.numel() == tiles_m * tiles_n * (plan.consumers if plan.specialized else 1)
    assert not counters.any()
    assert partials.numel() * partials.element_size() == tiles_m * tiles_n * partial_bytes(plan)
    assert plan.deterministic or not partials.any()


@dataclass(frozen=True)
class Call:
    """A split kernel with inputs whose sums round: another order of the splits would have other bits."""

    module: ModuleType
    a: Tensor
    b: Tensor
    extras: dict[str, Tensor]

    @classmethod
    def of(cls, stem: str, rows: int) -> Call:
        """Return a call of a committed module on so many rows of A."""
        product = made(spec_file(stem))
        plan = hopper(product.plan)
        spec, k = product.source, 8 * plan.splits * plan.cta_tile_k
        inputs = random_inputs(
            (rows, 5 * plan.cta_tile_n, k), spec.problem, torch.Generator("cuda").manual_seed(1)
        )
        return cls(import_generated(module_file(stem)), inputs.a, inputs.b, dict(inputs.extras))

    def __call__(self, **options: Any) -> Tensor:
        return matmul_of(self.module)(self.a, self.b, **self.extras, **options)


@gpu
@pytest.mark.parametrize("stem", REPEATABLE_MODULES)
def test_graphs_on_two_streams_have_the_same_bits_at_every_replay(stem: str) -> None:
    call = Call.of(stem, 8)
    expected = call()
    torch.cuda.synchronize()
    streams = (torch.cuda.Stream(), torch.cuda.Stream())
    graphs: list[tuple[torch.cuda.CUDAGraph, Tensor]] = []
    for _ in streams:
        with captured_graph() as graph:
            result = call()
        graphs.append((graph, result))
    different = torch.zeros(2, dtype=torch.int64, device=FIRST)
    for _ in range(REPLAYS):
        for i, (stream, (graph, result)) in enumerate(zip(streams, graphs, strict=True)):
            with torch.cuda.stream(stream):
                result.fill_(float("nan")) if result.is_floating_point() else result.fill_(-1)
                graph.replay()
                different[i] += (result != expected).sum()
    torch.cuda.synchronize()
    assert not different.any()


@gpu
@pytest.mark.parametrize("stem", REPEATABLE_MODULES)
def test_calls_on_two_streams_have_the_same_bits(stem: str) -> None:
    call = Call.of(stem, 8)
    expected = call()
    torch.cuda.synchronize()
    streams = (torch.cuda.Stream(), torch.cuda.Stream())
    different = torch.zeros(2, dtype=torch.int64, device=FIRST)
    for _ in range(REPLAYS):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                different[i] += (call() != expected).sum()
    torch.cuda.synchronize()
    assert not different.any()


@gpu
@pytest.mark.parametrize("stem", SPLIT_MODULES)
def test_a_workspace_is_left_as_it_was_found_and_must_be_large_enough(stem: str) -> None:
    call = Call.of(stem, 8)
    m, n = 8, call.b.shape[1]
    workspace = call.module.make_workspace(m, n, FIRST)
    first, second = call(workspace=workspace), call(workspace=workspace)
    if stem in REPEATABLE_MODULES:
        assert torch.equal(first, second)
    else:
        torch.testing.assert_close(first, second)
    for name, memory in zip(("partials", "counters"), workspace, strict=True):
        assert name not in made(spec_file(stem)).plan.restored or not memory.any()
    small = call.module.make_workspace(1, 1, FIRST)
    message = f"workspace must be for {m} x {n}, found {small[1].numel()} counters"
    with pytest.raises(ValueError, match=message):
        call(workspace=small)


@gpu
@pytest.mark.parametrize("stem", ORDERED_MODULES)
def test_the_bits_of_a_row_do_not_depend_on_how_many_there_are(stem: str) -> None:
    call = Call.of(stem, 64)
    whole = call()
    for rows in (1, 3, 8, 33):
        extras = {
            name: tensor[:rows] if name.startswith("row") or name in ("c", "a_scale") else tensor
            for name, tensor in call.extras.items()
        }
        if "a_scale" in extras:
            extras["a_scale"] = call.module.arrange_scales("a_scale", extras["a_scale"])
        part = Call(call.module, call.a[:rows], call.b, extras)()
        assert torch.equal(part, whole[:rows]), rows


def is_linked(plan: WgmmaKernel) -> bool:
    """Whether a kernel starts early, and its D lies in memory as the operand that it then awaits."""
    problem = plan.problem
    if problem.d.name != (problem.a if plan.read_early == "b" else problem.b).dtype.name:
        return False
    return plan.read_early == "b" or (plan.read_early == "a" and problem.b.major == "mn")


EARLY_MODULES = tuple(spec.stem for spec in HOPPER_SPECS if is_linked(hopper(made(spec).plan)))
LINKS = 60
"""Of a chain: with weights that keep the size of what they multiply, its numbers stay in range."""


@dataclass(frozen=True)
class Chain:
    """Calls of a kernel that starts early: each reads the D of the one ahead and writes over what it read."""

    call: Call
    early: str
    buffers: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, stem: str) -> Chain:
        """Return a chain of a committed module: of rows of A with B as the weight, or of columns of B."""
        product = made(spec_file(stem))
        size, few = 1024, 200
        m, n = (few, size) if product.plan.read_early == "b" else (size, few)
        generator = torch.Generator("cuda").manual_seed(1)
        inputs = random_inputs((m, n, size), product.source.problem, generator)
        a, b, extras = inputs.a, inputs.b, dict(inputs.extras)
        weight, moving = (b, a) if product.plan.read_early == "b" else (a, b)
        weight.div_(size**0.5)
        if "tensor_scale" in extras:
            extras["tensor_scale"].fill_(1.0)
        call = Call(import_generated(module_file(stem)), a, b, extras)
        return cls(call, product.plan.read_early or "", (moving, torch.empty_like(moving)))

    def run(self, *, apart: bool) -> Tensor:
        """Return the last D of a chain whose kernels overlap, or are far apart."""
        here, there = (buffer.clone() for buffer in self.buffers)
        return self.linked(here, there, apart=apart)

    def linked(self, here: Tensor, there: Tensor, *, apart: bool = False) -> Tensor:
        """Return the last D of a chain in these two matrices."""
        matmul = matmul_of(self.call.module)
        for _ in range(LINKS):
            operands = (here, self.call.b) if self.early == "b" else (self.call.a, here)
            matmul(*operands, **self.call.extras, out=there)
            if apart:
                torch.cuda.synchronize()
            here, there = there, here
        return here


@gpu
@pytest.mark.parametrize("stem", EARLY_MODULES)
def test_kernels_that_overlap_compute_what_they_compute_apart(stem: str) -> None:
    chain = Chain.of(stem)
    expected = chain.run(apart=True)
    assert torch.isfinite(expected).all()
    for _ in range(20):
        assert torch.equal(chain.run(apart=False), expected)
    here, there = (buffer.clone() for buffer in chain.buffers)
    with captured_graph() as graph:
        result = chain.linked(here, there)
    for _ in range(100):
        here.copy_(chain.buffers[0])
        graph.replay()
        assert torch.equal(result, expected)
