"""Rows over which TMA cannot stride: what a module with ``misaligned: copy`` copies, and that D is right.

All of it runs without a GPU: the wrapper is whole, on CPU tensors that claim to be on one, and in place of
the launch the spec is computed from the memory that TMA is told of. Like TMA it writes rows of D in whole
units of 16 bytes. `gemmgen test` runs the committed modules on the shapes of `MISALIGNED_SHAPES` on a GPU.
"""

from __future__ import annotations

import ctypes
import gc
import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import SPECS, made, module_file
from right_kernel import written_out
from ruamel.yaml import YAML
from torch import Tensor

from gemmgen.bench.arms import input_sets
from gemmgen.bench.record import Protocol
from gemmgen.errors import GemmgenError
from gemmgen.module import import_generated
from gemmgen.numerics.encoding import bits, poison, rounded
from gemmgen.planner import plan_spec
from gemmgen.product import make
from gemmgen.spec import Spec, SpecFile, load_spec
from gemmgen.triton_api import specialize
from gemmgen.verify import verify
from gemmgen.verify.shapes import ACCEPTANCE_SHAPES, MISALIGNED_SHAPES, acceptance_shapes
from gluonsim import simulate

COMMITTED = tuple(path for path in SPECS if made(path).plan.problem.copies_misaligned)
SHAPES = ((5, 11, 9), (9, 24, 17), (33, 7, 40), (8, 16, 16), (1, 1, 1), (3, 1, 588), (130, 259, 100))
"""[M, N, K] with odd and even lengths of all rows, with one row and one column, and one that is aligned."""
UNIT_BYTES = 16


def document(a: str, d: str, majors: str = "kk", **sections: Any) -> dict[str, Any]:
    """A spec that copies; `majors` has k or m for A and for B."""
    major = {"k": "k", "m": "mn"}
    operands = {
        "a": {"dtype": a, "major": major[majors[0]]},
        "b": {"dtype": a, "major": major[majors[1]]},
        "d": {"dtype": d},
        "misaligned": "copy",
    }
    return {"title": "t", "target": "h100", "operands": operands | sections.pop("operands", {}), **sections}


OPS = ["row_scale", "column_bias", "residual", "tensor_scale"]
DOCUMENTS: dict[str, dict[str, Any]] = {
    "nn": document("bf16", "bf16", "km"),
    "nt": document("bf16", "fp32", "mm"),
    "tt": document("fp16", "fp16", "mk"),
    "fp8": document("e4m3", "e4m3"),
    "int8": document("int8", "int32"),
    "tf32": document("tf32", "bf16"),
    "epilogue": document(
        "bf16", "bf16", operands={"c": {"dtype": "bf16"}}, epilogue={"ops": OPS}, tile={"m": 128, "n": 128}
    ),
    "c": document(
        "bf16", "fp32", operands={"c": {"dtype": "fp32"}}, epilogue={"beta": 0.5}, tile={"m": 128, "n": 64}
    ),
    "parts": document("bf16", "bf16", tile={"m": 128, "n": 96}),
    "rows of the instruction": document("bf16", "bf16", mma={"rows": "n"}),
    "parts of K": document("bf16", "bf16", schedule={"kind": "tiled", "splits": 2}),
    "blackwell": document("bf16", "bf16") | {"target": "b200"},
    "blackwell nt": document("fp16", "bf16", "mm") | {"target": "b200"},
}


@dataclass
class Made:
    """A module that computes on the CPU, its spec, and the arguments of its launches."""

    module: ModuleType
    spec: SpecFile
    launches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __call__(self, a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        result: Tensor = self.module.matmul(a, b, out=out, **extras)
        return result


def memory_of(descriptor: Any, columns: int | None = None) -> Tensor:
    """What TMA is told of, from its address, extents and strides alone; or rows of so many columns there."""
    shape, strides = list(descriptor.shape), tuple(descriptor.strides)
    shape[-1] = columns or shape[-1]
    itemsize = descriptor.base.dtype.itemsize
    count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    buffer = (ctypes.c_uint8 * (count * itemsize)).from_address(descriptor.base.data_ptr())
    return torch.frombuffer(buffer, dtype=torch.uint8).view(descriptor.base.dtype).as_strided(shape, strides)


def on_the_cpu(module: ModuleType, spec: SpecFile, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Let a module run on the CPU: all of its wrapper, and in place of the launch what the spec says."""
    problem, names = spec.problem, module.matmul_kernel.arg_names
    found = Made(module, spec)

    def launch(*launched: Any) -> None:
        arguments = dict(zip(names, launched[-1], strict=False))
        found.launches.append(arguments)
        a, b = (memory_of(arguments[f"{name}_desc"]) for name in "ab")
        a, b = (a.T if problem.a.major == "mn" else a), (b if problem.b.major == "mn" else b.T)
        extras = {
            name.removesuffix("_desc"): memory_of(argument)
            for name, argument in arguments.items()
            if name.endswith("_desc") and not re.match("(a|b|b_.|d)_desc", name)
        }
        if problem.scalar:
            extras["tensor_scale"] = arguments["tensor_scale_ptr"].as_subclass(Tensor)
        d = arguments["d_desc"]
        unit = UNIT_BYTES // d.base.dtype.itemsize
        n = d.shape[1]
        written = memory_of(d, -(-n // unit) * unit)
        found_d = rounded(written_out(spec, a, b, **extras), written.dtype)  # D may be C
        written.fill_(poison(written.dtype))  # TMA clips a row at the end of its last unit
        written[:, :n].copy_(found_d)

    def copy(pairs: list[tuple[Tensor, ...]]) -> None:
        for source, target, *_ in pairs:
            target.copy_(source)

    on_a_fake_gpu(monkeypatch, (10, 0) if spec.spec.target == "b200" else (9, 0))
    launch_into(module, launch)
    monkeypatch.setattr(module.call, "copy", copy)
    return found


def given(made: Made, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module for `verify`, which calls it with plain tensors."""
    matmul = made.module.matmul

    def plain(a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        extras = {name: tensor.as_subclass(Cuda) for name, tensor in extras.items()}
        into = None if out is None else out.as_subclass(Cuda)
        result = matmul(a.as_subclass(Cuda), b.as_subclass(Cuda), out=into, **extras).as_subclass(Tensor)
        return result if out is None else out

    monkeypatch.setattr(made.module, "matmul", plain)
    return made.module


def built(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The module of one of the documents."""
    path = directory / "copying.yaml"
    yaml: Any = YAML(typ="safe", pure=True)
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(DOCUMENTS[name], file)
    product = make(path)
    module_path = directory / "copying.py"
    module_path.write_text(product.module, encoding="utf-8")
    return on_the_cpu(import_generated(module_path), product.source, monkeypatch)


def committed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return on_the_cpu(import_generated(module_file(path.stem)), load_spec(path), monkeypatch)


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Small integers, whose products are exact."""
    return torch.randint(-1, 2, shape).to(dtype).as_subclass(Cuda)


# --- the numbers


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_module_is_right_on_rows_of_any_length(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = committed(path, monkeypatch)
    verification = verify(given(found, monkeypatch), found.spec, SHAPES, repeats=2, device="cpu")
    assert not verification.failures
    assert verification.checks


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_kind_of_operand_is_right_on_rows_of_any_length(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = built(name, tmp_path, monkeypatch)
    verification = verify(given(found, monkeypatch), found.spec, SHAPES, repeats=2, device="cpu")
    assert not verification.failures
    assert verification.checks


def test_the_checks_give_tensors_that_have_to_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = built("epilogue", tmp_path, monkeypatch)
    copies = watched_copies(found, monkeypatch)
    verify(given(found, monkeypatch), found.spec, [(7, 11, 9)], repeats=1, device="cpu")
    a, b, c, vector, d = (7, 9), (11, 9), (7, 11), (1, 11), (7, 11)
    assert {pair for pairs in copies for pair in pairs} == {a, b, c, vector, d, (1, 7)}


# --- what is copied


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Made:
    """A module for A and B of bf16, both K-major."""
    (path,) = (path for path in COMMITTED if path.stem == "h100_bf16_misaligned")
    return committed(path, monkeypatch)


def watched_copies(made: Made, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """The shapes of what is copied, as it lies in memory, by calls."""
    shapes: list[list[tuple[int, ...]]] = []
    copy = made.module.call.copy

    def watched(pairs: list[tuple[Tensor, ...]]) -> None:
        if pairs:
            shapes.append([tuple(source.shape) for source, *_ in pairs])
        copy(pairs)

    monkeypatch.setattr(made.module.call, "copy", watched)
    return shapes


def addresses(made: Made) -> dict[str, int]:
    """Where TMA was told that each tensor lies, in the last launch."""
    return {name: found.base.data_ptr() for name, found in made.launches[-1].items()}


def test_what_tma_takes_is_not_copied(plain: Made) -> None:
    a, b, out = numbers(4, 16), numbers(24, 16), numbers(4, 24)
    assert plain(a, b.T, out=out) is out
    tensors = {"a_desc": a, "b_desc": b, "d_desc": out}
    assert addresses(plain) == {name: tensor.data_ptr() for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", ["a", "b"])
def test_only_what_is_misaligned_is_copied(plain: Made, name: str) -> None:
    wide = numbers(8, 48)
    odd, even = wide[:, 1:41], wide[:, :40]  # an odd address, and an even one
    a, b = (odd, even) if name == "a" else (even, odd)
    result = plain(a, b.T)
    assert torch.equal(result, (a.float() @ b.float().T).bfloat16())
    found = addresses(plain)
    assert (found["a_desc"] == a.data_ptr()) == (name == "b")
    assert (found["b_desc"] == b.data_ptr()) == (name == "a")


def test_a_copy_has_the_fewest_columns_that_tma_takes(plain: Made) -> None:
    plain(numbers(4, 588), numbers(24, 588).T)
    a_desc, b_desc = (plain.launches[0][name] for name in ("a_desc", "b_desc"))
    assert (a_desc.shape, a_desc.strides) == ((4, 588), (592, 1))
    assert (b_desc.shape, b_desc.strides) == ((24, 588), (592, 1))


def test_all_parts_of_a_tile_read_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = built("parts", tmp_path, monkeypatch)
    found(numbers(4, 9), numbers(100, 9).T)
    where = addresses(found)
    assert where["b_desc"] == where["b_1_desc"]


def test_nothing_is_copied_before_all_is_judged(plain: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = watched_copies(plain, monkeypatch)
    with pytest.raises(ValueError, match="b must have shape"):
        plain(numbers(4, 9), numbers(24, 10).T)
    with pytest.raises(ValueError, match="out must have shape"):
        plain(numbers(4, 9), numbers(24, 9).T, out=numbers(4, 25))
    assert copies == []


def test_no_copy_outlives_its_call(plain: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[weakref.ref[Tensor]] = []
    copy, kernel = plain.module.call.copy, plain.module.__dict__["matmul_kernel"]
    alive: list[bool] = []

    def watched(pairs: list[tuple[Tensor, ...]]) -> None:
        copies.extend(weakref.ref(target) for _, target, *_ in pairs)
        copy(pairs)

    def launched(*arguments: Any) -> None:
        alive.extend(reference() is not None for reference in copies)
        kernel.launch(*arguments)

    monkeypatch.setattr(plain.module.call, "copy", watched)
    launch_into(plain.module, launched)
    plain(numbers(4, 9), numbers(24, 9).T)
    plain.launches.clear()
    gc.collect()
    assert alive == [True, True]
    assert [reference() for reference in copies] == [None, None]


# --- the kernel that copies


class Simulated:
    """A kernel whose launches the simulator runs on the CPU."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.grids: list[int] = []

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        self.grids += grid

        def launch(*arguments: Any, **options: Any) -> None:
            plain = [each.as_subclass(Tensor) if isinstance(each, Tensor) else each for each in arguments]
            simulate(self.kernel, target="h100")[grid](*plain, **options).raise_on_findings()

        return launch


@pytest.fixture
def copying(plain: Made, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[list[Any]], None], Simulated]:
    """A module's own `copy`, and its kernel, in the simulator."""
    module = import_generated(module_file("h100_bf16_misaligned"))
    kernel = Simulated(module.copy_kernel)
    monkeypatch.setattr(module, "copy_kernel", kernel)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    return module.call.copy, kernel


def rows_of(storage: Tensor, rows: int, columns: int, stride: int, start: int) -> Tensor:
    """A view of a storage that is poison all over."""
    storage.fill_(poison(storage.dtype))
    return storage.as_strided((rows, columns), (stride, 1), start)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.float8_e5m2])
def test_one_launch_copies_two_matrices_and_nothing_beside_them(
    copying: tuple[Callable[[list[Any]], None], Simulated], dtype: torch.dtype
) -> None:
    copy, kernel = copying
    pairs: list[tuple[Tensor, Tensor]] = []
    storages: list[Tensor] = []
    for rows, columns, stride, start in ((70, 65, 67, 3), (1, 130, 131, 1)):
        source = rows_of(torch.empty(rows * stride + 8, dtype=dtype), rows, columns, stride, start)
        source.copy_(numbers(rows, columns).as_subclass(Tensor))
        storages.append(torch.empty(rows * (stride + 6), dtype=dtype))
        pairs.append((source, rows_of(storages[-1], rows, columns, stride + 5, 2)))
    copy(pairs)
    assert kernel.grids == [3 * 2 + 1 * 3]  # blocks of 32 x 64
    for (source, target), storage in zip(pairs, storages, strict=True):
        assert torch.equal(target.double(), source.double())
        target.fill_(poison(dtype))
        assert torch.equal(bits(storage), bits(torch.full_like(storage, poison(dtype))))


def test_three_matrices_are_copied_by_two_launches(
    copying: tuple[Callable[[list[Any]], None], Simulated],
) -> None:
    copy, kernel = copying
    pairs = [(numbers(5, 9).as_subclass(Tensor), torch.zeros(5, 16).bfloat16()[:, :9]) for _ in range(3)]
    copy(pairs)
    assert kernel.grids == [2, 1]
    assert all(torch.equal(source, target) for source, target in pairs)
    copy([])
    assert kernel.grids == [2, 1]


def test_one_kernel_copies_rows_of_every_length() -> None:
    """What a launch is compiled for depends on types alone, and on no number or address."""
    kernel: Any = import_generated(module_file("h100_bf16_misaligned")).copy_kernel
    made: set[str | None] = set()
    for start, columns in ((0, 64), (0, 1), (1, 9)):
        matrix = torch.zeros(4096).bfloat16()[start:]
        slot = (matrix, matrix, 1, columns, columns, 16)
        made.add(specialize(kernel, (columns, *slot, *slot), {"num_warps": 4}, 90, 32).digest())
    assert len(made - {None}) == len(made) == 1


# --- D


@pytest.mark.parametrize("stride", [24, 25, 32])
def test_an_out_of_any_stride_is_returned_and_written_alone(plain: Made, stride: int) -> None:
    storage = torch.full((4 * stride + 16,), 7.0, dtype=torch.bfloat16).as_subclass(Cuda)
    out = storage.as_strided((4, 21), (stride, 1), 3)
    a, b = numbers(4, 9), numbers(21, 9).T
    assert plain(a, b, out=out) is out
    assert torch.equal(out, (a.float() @ b.float()).bfloat16())
    out.fill_(7.0)
    assert torch.all(storage == 7.0)


def test_a_result_without_an_out_is_a_view_of_padded_rows(plain: Made) -> None:
    result = plain(numbers(4, 9), numbers(21, 9).T)
    assert (result.shape, result.stride()) == ((4, 21), (24, 1))
    assert addresses(plain)["d_desc"] == result.data_ptr()


@pytest.mark.parametrize("shape", [(0, 21, 9), (4, 0, 9), (4, 21, 0)])
def test_an_empty_problem_copies_and_launches_nothing(plain: Made, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    out = torch.full((m, n), 7.0, dtype=torch.bfloat16).as_subclass(Cuda)
    assert plain(numbers(m, k), numbers(n, k).T, out=out) is out
    assert not out.any()
    assert plain.launches == []


def test_one_matrix_as_both_operands_is_copied_for_each(plain: Made) -> None:
    square = numbers(9, 9)
    expected = (square.float() @ square.float()).bfloat16()
    assert torch.equal(plain(square, square), expected)


def test_a_misaligned_c_that_d_is_written_over_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = built("c", tmp_path, monkeypatch)
    a, b, c = numbers(4, 9), numbers(11, 9).T, numbers(4, 11, dtype=torch.float32)
    expected = a.float() @ b.float() + 0.5 * c
    assert found(a, b, c=c, out=c) is c
    assert torch.equal(c, expected)


# --- what is made once


def test_an_aligned_weight_is_copied_once_for_all_calls(plain: Made) -> None:
    weight = numbers(24, 588)
    once = plain.module.align("b", weight.T)
    assert torch.equal(once, weight.T)
    assert once.stride() == (1, 592)
    plain(numbers(4, 588), once)
    assert addresses(plain)["b_desc"] == once.data_ptr()
    assert plain.module.align("b", once) is once


def test_what_is_aligned_already_is_returned_as_it_is(plain: Made) -> None:
    a, b, row = numbers(4, 16), numbers(24, 16).T, numbers(1, 9)
    assert plain.module.align("a", a) is a
    assert plain.module.align("b", b) is b
    assert plain.module.align("a", row) is row  # of one row, the stride does not matter


def test_a_vector_and_c_can_be_aligned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = built("epilogue", tmp_path, monkeypatch)
    for name, tensor in (("column_bias", numbers(12)[1:]), ("c", numbers(7, 11))):
        once = found.module.align(name, tensor)
        assert torch.equal(once, tensor)
        assert once.data_ptr() % UNIT_BYTES == 0
        assert once.data_ptr() != tensor.data_ptr()
        assert found.module.align(name, once) is once


WRONG: dict[str, tuple[Callable[[ModuleType], object], type[Exception], str]] = {
    "a name that there is not": (
        lambda module: module.align("weight", numbers(4, 9)),
        ValueError,
        "name must be one of a, b, out, found weight",
    ),
    "align of another type": (
        lambda module: module.align("a", numbers(4, 9, dtype=torch.float32)),
        TypeError,
        "a must be a tensor of torch.bfloat16, found torch.float32",
    ),
    "an out that overlaps": (
        lambda module: module.matmul(
            numbers(4, 9), numbers(9, 9).T, out=numbers(40).as_strided((4, 9), (3, 1))
        ),
        ValueError,
        "out must not overlap itself, found rows of 9, 3 apart",
    ),
    "an out of another shape": (
        lambda module: module.matmul(numbers(4, 9), numbers(21, 9).T, out=numbers(4, 22)),
        ValueError,
        "out must have shape [4, 21], found [4, 22]",
    ),
    "a parameter": (
        lambda module: module.matmul(numbers(4, 9).requires_grad_(), numbers(21, 9).T),
        ValueError,
        "a must not require grad (no backward): detach it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_any_other_fault_is_refused_as_ever(plain: Made, case: str) -> None:
    call, kind, text = WRONG[case]
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call(plain.module)
    assert plain.launches == []


LYING: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "b by rows of K": lambda: (numbers(4, 9), numbers(9, 24)),
    "a by columns": lambda: (numbers(9, 4).T, numbers(24, 9).T),
    "every second column": lambda: (numbers(4, 18)[:, ::2], numbers(24, 9).T),
    "rows that overlap": lambda: (numbers(40).as_strided((4, 9), (3, 1)), numbers(24, 9).T),
    "one row for all": lambda: (numbers(1, 16).expand(4, 16), numbers(24, 16).T),
    "one element for all": lambda: (numbers(1, 1).expand(4, 16), numbers(24, 16).T),
}
"""Operands of strides that no tensor map has."""


@pytest.mark.parametrize("case", LYING)
def test_an_operand_of_any_strides_is_copied(plain: Made, case: str) -> None:
    a, b = LYING[case]()
    assert torch.equal(plain(a, b), (a.float() @ b.float()).bfloat16())


def test_a_row_major_weight_is_aligned_once(plain: Made) -> None:
    weight = numbers(9, 24)
    aligned = plain.module.align("b", weight)
    assert torch.equal(aligned, weight)
    assert aligned.stride() == (1, 16)


# --- the spec, and what is run for it


def spec_of(**operands: object) -> SpecFile:
    return SpecFile.of(Spec.model_validate(document("bf16", "bf16", operands=operands)))


def test_a_listed_problem_may_have_rows_of_any_length(tmp_path: Path) -> None:
    text = """title: t
target: h100
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}, misaligned: WORD}
check: {shapes: [[5, 11, 9]]}
problem: {m: [1, 7], n: 11, k: 9}
"""
    path = tmp_path / "spec.yaml"
    path.write_text(text.replace("WORD", "copy"), encoding="utf-8")
    assert plan_spec(load_spec(path)).problem.copies_misaligned
    for word in ("refuse", "null"):
        path.write_text(text.replace("WORD", word), encoding="utf-8")
        with pytest.raises(GemmgenError) as refused:
            plan_spec(load_spec(path))
        assert {found.code for found in refused.value.diagnostics} == {"shape-alignment"}
        assert all(
            found.message.endswith("or copy for operands.misaligned") for found in refused.value.diagnostics
        )


def test_such_a_spec_is_tested_on_such_shapes() -> None:
    assert acceptance_shapes(spec_of()) == (*ACCEPTANCE_SHAPES, *MISALIGNED_SHAPES)
    assert acceptance_shapes(spec_of(misaligned="refuse")) == tuple(ACCEPTANCE_SHAPES)


def test_a_benchmark_gives_such_a_kernel_contiguous_tensors() -> None:
    for misaligned, stride in (("copy", 9), ("refuse", 16)):
        generator = torch.Generator().manual_seed(0)
        inputs = input_sets((5, 11, 9), spec_of(misaligned=misaligned).problem, 1, generator, Protocol())[
            0
        ].timed
        assert (inputs.a.stride(), inputs.b.stride()) == ((stride, 1), (1, stride))


def test_such_kernels_are_compared_among_themselves() -> None:
    assert spec_of().description == "bf16 rows of any length"
    assert spec_of(misaligned="refuse").description == "bf16"
