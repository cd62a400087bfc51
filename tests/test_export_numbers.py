"""export: numbers of kernels that the launcher in C launches, on a GPU.

The launcher is a shared library here, and ``matmul`` calls it with tensors of torch, in torch's context. So
`gemmgen.verify` checks an exported kernel as it checks a module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_driver import exported, facts_of, sources
from hopper import hopper
from modules import EVERY_SPEC, GROUPED_SPECS, made, spec_file
from programs import compiled_c
from torch import Tensor

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.features import checking, rendering
from gemmgen.features.exporting import refusals
from gemmgen.hardware import HOPPER
from gemmgen.numerics.case import row_major
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.numerics.inputs import Inputs
from gemmgen.product import Product
from gemmgen.render.aot.contract import Contract
from gemmgen.render.aot.facts import LaunchFacts
from gemmgen.verify.verification import verify_numbers

DENSE = (
    *("h100_bf16", "h100_bf16_cluster2x2", "h100_bf16_rows8", "h100_bf16_split8_bias"),
    *("h100_bf16_early_split2", "h100_bf16_residual", "h100_e4m3_scaled", "h100_int8", "h100_tf32"),
    *("h100_bf16_128x320", "h100_bf16_single_tile"),
)


def is_special(spec: Path) -> bool:
    """Return True for the spec of an exported Hopper kernel with groups, a gate or scales of blocks."""
    plan = made(spec).plan
    problem = plan.problem
    special = problem.groups or problem.gated or problem.scales_sums or problem.d_scale
    return bool(special) and not [*refusals(plan)]


SPECIAL = sorted({spec.stem for spec in (*EVERY_SPEC, *GROUPED_SPECS) if is_special(spec)})


class Matrix(ctypes.Structure):
    """``gemmgen_matrix``."""

    _fields_ = (("address", ctypes.c_uint64), ("row_stride", ctypes.c_int64))


class Workspace(ctypes.Structure):
    """``gemmgen_workspace``."""

    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_size_t), ("counters", ctypes.c_int64))


TYPES = {"gemmgen_matrix": Matrix, "gemmgen_workspace": Workspace, "CUdeviceptr": ctypes.c_uint64}


def structure_of(facts: LaunchFacts) -> type[ctypes.Structure]:
    """Return the structure of a caller's arguments."""
    contract = Contract(facts, rendering.sides_of(facts.plan))
    extents = [(name, ctypes.c_int64) for name in contract.extents.split(", ")]
    members = [(member.name, TYPES[member.type]) for member in contract.members]
    return type("Arguments", (ctypes.Structure,), {"_fields_": [*extents, *members]})


class Exported:
    """An exported kernel as a function of tensors."""

    def __init__(self, product: Product, folder: Path) -> None:
        self.problem, self.facts = product.plan.problem, facts_of(product.source.stem)
        self.structure, stem = structure_of(self.facts), product.source.stem
        directory, library = exported(stem), folder / "launcher.so"
        compiled_c("-shared", "-fPIC", "-o", library, *sources(stem, directory))
        self.library = ctypes.CDLL(str(library))
        self.library.gemmgen_message.restype = ctypes.c_char_p
        self.kernel = ctypes.c_void_p()
        self.launch: Callable[..., int] = self.library[f"{stem}_matmul"]
        if self.facts.workspace:
            self.library[f"{stem}_workspace_bytes"].restype = ctypes.c_size_t
            self.library[f"{stem}_workspace_bytes"].argtypes = [ctypes.c_int64] * 2
        path = str(directory / f"{stem}.cubin").encode()
        self.succeed(self.library[f"{stem}_load"](path, ctypes.byref(self.kernel)))

    def succeed(self, status: int) -> None:
        """Raise RuntimeError with the launcher's message if a call failed."""
        if status:
            raise RuntimeError(f"{status} {self.library.gemmgen_message().decode()}")

    def __call__(
        self, a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return D, and its scales if the kernel computes some."""
        inputs = Inputs(a, b, extras, self.problem.b_blocks, sides=checking.sides_of(self.problem))
        m, n, k = inputs.shape
        d = out
        if d is None:
            dtype = TORCH_DTYPES[self.problem.d.name]
            d = torch.empty(self.problem.extents_of_d(m, n), dtype=dtype, device=a.device)
        memory = row_major(self.problem, inputs, d)
        if self.problem.d_scale:
            memory["d_scale"] = self._scales(d)
        arguments = self.structure(m=m, n=n, k=k)
        if self.problem.groups:
            arguments.groups = self.problem.groups.count
        for member in Contract(self.facts, rendering.sides_of(self.facts.plan)).members:
            if member.type == "gemmgen_workspace":
                kept = self._workspace(m, n, a.device, arguments.workspace)
                assert kept.data_ptr() == arguments.workspace.address
                continue
            tensor = memory[member.name]
            place = tensor.data_ptr()
            matrix = member.type == "gemmgen_matrix"
            setattr(arguments, member.name, Matrix(place, tensor.stride(-2)) if matrix else place)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.succeed(self.launch(self.kernel, ctypes.byref(arguments), stream))
        torch.cuda.synchronize()  # the workspace and scales live until here
        return (d, memory["d_scale"][..., :m].mT) if self.problem.d_scale else d

    def _scales(self, d: Tensor) -> Tensor:
        """Return memory for the scales of D: rows of M scales that begin at multiples of 16 bytes."""
        scale = self.problem.d_scale
        assert scale is not None
        *groups, m, n = d.shape
        unit = 16 // scale.dtype.bytes
        extents = (*groups, n // scale.vector, -(-m // unit) * unit)
        return torch.empty(extents, dtype=TORCH_DTYPES[scale.dtype.name], device=d.device)

    def _workspace(self, m: int, n: int, device: torch.device, workspace: Workspace) -> Tensor:
        size = self.library[f"{self.facts.stem}_workspace_bytes"](m, n)
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.succeed(
            self.library.gemmgen_prepare_workspace(
                self.kernel,
                ctypes.c_int64(m),
                ctypes.c_int64(n),
                ctypes.c_uint64(memory.data_ptr()),
                ctypes.c_size_t(size),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
                ctypes.byref(workspace),
            )
        )
        return memory


@pytest.mark.parametrize("stem", [*DENSE, *SPECIAL])
def test_the_structure_of_arguments_has_the_size_that_a_compiler_gives_it(stem: str, tmp_path: Path) -> None:
    from fake_driver import texts

    for name, text in texts(stem).items():
        (tmp_path / name).write_text(text)
    size = ctypes.sizeof(structure_of(facts_of(stem)))
    (tmp_path / "size.c").write_text(
        f'#include "{stem}.h"\n_Static_assert(sizeof({stem}_arguments) == {size}, "");\n'
    )
    compiled_c("-fsyntax-only", tmp_path / "size.c")


@pytest.mark.gpu
@pytest.mark.parametrize("stem", [*DENSE, *SPECIAL])
def test_an_exported_kernel_computes_the_right_numbers_on_a_gpu(stem: str, tmp_path: Path) -> None:
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    product = made(spec_file(stem))
    plan, unit = hopper(product.plan), facts_of(stem).column_unit
    count = 1 if plan.schedule_kind == "single_tile" else 2
    m, n, k = plan.program_tile_m * count, plan.program_tile_n * count, plan.cta_tile_k * plan.splits * count
    shapes = ((m, n, k), (m - 3, max(unit, n - unit), max(plan.access.k_multiple, k - 16)))
    torch.zeros(1, device="cuda")  # torch's context is the current one
    module = ModuleType(stem)
    module.__dict__.update(matmul=Exported(product, tmp_path))
    found = verify_numbers(module, product.source, shapes)
    assert [check for check in found.checks if not check.passed] == []
    assert found.checks
