"""One problem for one kernel: its arguments, its run, and the checks of its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.module import MatmulFunction
from gemmgen.numerics.drawing import drawn_inputs
from gemmgen.numerics.encoding import TORCH_DTYPES, not_finite, poison, rounded
from gemmgen.numerics.inputs import Inputs, Numbers
from gemmgen.numerics.matrices import Draw, Layout, Matrix, takes_out, touched
from gemmgen.numerics.quantized import poisoned_outputs
from gemmgen.numerics.reference import (
    Check,
    Tolerance,
    deviation,
    references,
    references_of_saved,
    saved_deviation,
    tolerance,
)
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.storage import numbered
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.operations import BLOCK_SCALES


@dataclass(frozen=True)
class Case:
    """A kernel to be checked on one shape."""

    matmul: MatmulFunction
    shape: Shape
    problem: Matmul
    generator: torch.Generator
    """Draws the inputs on the device under test; each group of checks draws its own."""
    repeats: int
    promote_k: int | None
    """Number of K after which sums are promoted to fp32; None if the spec states none."""
    pack_scales: Callable[[Tensor], Tensor] | None = None
    """The module's function that packs scales, for block-scaled operands."""
    arrange_scales: Callable[[str, Tensor], Tensor] | None = None
    """The module's function that lays out scales of sums, by their name, as the kernel reads them."""
    misaligned: bool = False
    """True if rows of the tensors start where TMA cannot load them, so that the wrapper has to copy them."""
    deterministic: bool = True
    """True if the plan promises equal bits in every run."""
    workspace_bytes: int = 0
    """Bytes of the memory in which a call keeps partial sums."""
    sides: tuple[Numbers, ...] = field(kw_only=True)
    """The features of the problem."""

    @property
    def device(self) -> torch.device:
        """Device that runs the kernel."""
        return self.generator.device

    def inputs(self, *, guarded: bool = False) -> Inputs:
        """Return fresh random inputs, each as the spec wants it."""
        return drawn_inputs(self.layout(guarded=guarded), self.problem, self.sides)

    def layout(self, *, guarded: bool = False, integers: bool = False, hostile: bool = False) -> Layout:
        """Return where inputs of the case lie, and how they are drawn."""
        draw = Draw(self.generator, integers=integers, hostile=hostile)
        return Layout(self.shape, self.device, draw, guarded=guarded, misaligned=self.misaligned)

    def output(self, *, guarded: bool = False) -> Matrix:
        """Return a poisoned d of the extents `d_shape`."""
        dtype = self.d_name
        made = Matrix.poisoned(
            *(self.rows, self.d_shape[-1], dtype, self.device), guarded=guarded, misaligned=self.misaligned
        )
        return Matrix(made.storage, made.view.view(self.d_shape))

    @property
    def d_shape(self) -> tuple[int, ...]:
        """Extents of d: [M, N], or [G, M, N] if it has a dimension for groups."""
        return self.problem.extents_of_d(*self.shape[:2])

    @property
    def rows(self) -> int:
        """Rows of d, of all groups."""
        return math.prod(self.d_shape[:-1])

    @property
    def d_dtype(self) -> torch.dtype:
        """Element type of d; a D with scales is compared as numbers (`Dequantized`)."""
        return TORCH_DTYPES[self.d_name]

    @property
    def d_name(self) -> str:
        """Name of the element type of d, as it is compared."""
        return "fp32" if self.problem.d_scale else self.problem.d.name

    @property
    def tolerance(self) -> Tolerance:
        """Largest deviation of a correct result."""
        return tolerance(self.problem, self.shape, self.promote_k)

    @property
    def takes_out(self) -> bool:
        """True if the wrapper must accept an ``out`` of this shape; if False, it must refuse every one."""
        return self.misaligned or takes_out(self.d_shape[-1], self.d_dtype)

    def run(self, inputs: Inputs) -> Tensor:
        """Run the kernel once into poison, an ``out`` if it accepts one, and return d [M, N]."""
        return inputs.call(self.matmul, self.output().view) if self.takes_out else self.run_alone(inputs)

    def run_alone(self, inputs: Inputs) -> Tensor:
        """Run the kernel once into the d that the wrapper allocates, which is poison too, and return it."""
        # Freed at once, so that on a GPU the next request of this size, for d, gets the block.
        self.poisoned_own()
        return inputs.call(self.matmul)

    def poisoned_own(self) -> Tensor:
        """Return poison in the type and size of the d that the wrapper allocates."""
        if self.problem.d_scale:
            return poisoned_outputs(self.problem, self.d_shape, self.device)[0]
        return Matrix.poisoned(self.rows, self.d_shape[-1], self.d_name, self.device).storage

    def check(self, what: str, measured: float, limit: float) -> Check:
        """Return a check of this case's shape."""
        return Check(self.shape, what, float(measured), limit)


def once(case: Case) -> Iterator[Check]:
    """Check that one run writes everything, and the right numbers."""
    inputs = case.inputs()
    yield from numbers(case, "once", case.run(inputs), inputs)


def numbers(case: Case, label: str, out: Tensor, inputs: Inputs) -> Iterator[Check]:
    """Check a result, which was poison, against the exact one, as a whole and element by element."""
    saved = inputs.extras["saved"] if case.problem.saves else None
    exact = None if saved is None else references_of_saved(saved, inputs, case.problem)
    found = deviation(out, inputs, case.problem, exact)
    computed = inputs.computed_rows(out)
    allowed = case.tolerance
    yield case.check(f"{label}: elements not finite", sum(map(not_finite, computed.parts())), 0)
    yield case.check(f"{label}: relative error", found.relative, allowed.relative)
    yield case.check(f"{label}: worst element", found.worst_element, allowed.worst_element)
    if saved is not None:
        sums = inputs.computed_rows(saved)
        yield case.check(f"{label}: saved sums not finite", sum(map(not_finite, sums.parts())), 0)
        of_saved = saved_deviation(inputs, case.problem)
        yield case.check(f"{label}: relative error of saved sums", of_saved.relative, allowed.relative)
        yield case.check(f"{label}: worst saved sum", of_saved.worst_element, allowed.worst_element)


def saved_elsewhere(case: Case, label: str, inputs: Inputs) -> Iterator[Check]:
    """Check that a call writes no saved sum outside of all groups, if it saves sums."""
    if case.problem.saves:
        yield case.check(f"{label}: saved sums of no group written", saved_outside(inputs), 0)


def saved_outside(inputs: Inputs) -> int:
    """Return the written elements of the storage of saved sums, which was poison, outside of all groups."""
    saved = inputs.extras["saved"]
    count = saved.untyped_storage().nbytes() // saved.element_size()
    storage = saved.as_strided((count,), (1,), 0)
    return touched(storage) - sum(map(touched, inputs.computed_rows(saved).parts()))


def kernel_arguments(
    module: ModuleType, problem: Matmul, inputs: Inputs, d: Tensor, *, restored: Collection[str] = ()
) -> list[Any]:
    """Return the arguments of a module's ``matmul_kernel``, in order, as its wrapper makes them.

    ``x_desc`` is a TMA descriptor over the row-major form of x, with the block and layout of ``TMA["x"]``
    (``"out"`` for D, which is d [M, N]); ``x_ptr`` is the tensor x. The descriptor of b_1 is over b, with the
    box of the second part of its tiles. The descriptor of a block-scaled operand's scales is over the result
    of the module's ``pack_scales``, ue8m0 as bytes. A kernel that divides K gets a new workspace in each
    call; its sums are poison, except for the arguments in ``restored``, which a launch must find at zero.

    Raises KeyError for any other argument.
    """
    return list(_arguments(module, problem, inputs, d, restored))


def workspace_bytes(module: ModuleType, problem: Matmul, d_shape: Sequence[int]) -> int:
    """Return the bytes of a call's partial sums and counters for a D of these extents; allocate nothing."""
    if not (hasattr(module, "make_workspace") or hasattr(module, "TILE_SUMS")):
        return 0
    made = _workspace(module, problem, torch.empty(tuple(d_shape), device="meta"))
    return sum(tensor.nbytes for tensor in made)


def _workspace(module: ModuleType, problem: Matmul, d: Tensor) -> tuple[Tensor, ...]:
    """Return memory for the partial sums, and counters if programs count them."""
    if make := getattr(module, "make_workspace", None):
        return make(*d.shape, d.device)
    tiles = -(-d.shape[0] // module.PROGRAM_TILE_M.value) * -(-d.shape[1] // module.PROGRAM_TILE_N.value)
    count, dtype = tiles * module.SPLITS.value * module.TILE_SUMS.value, problem.accumulator.name
    return (torch.empty(count, dtype=TORCH_DTYPES[dtype], device=d.device),)


def reduction_arguments(
    module: ModuleType, problem: Matmul, inputs: Inputs, d: Tensor, partials: Tensor
) -> list[Any]:
    """Return the arguments of a module's ``reduction_kernel``, in order, after the partial sums.

    ``x_ptr`` is the tensor x, ``x_stride`` the distance of its rows in elements, ``m`` and ``n`` D's extents.
    """
    stored = row_major(problem, inputs, d) | {"partials": partials}
    extents = dict(zip(("m", "n"), d.shape, strict=True))
    names: list[str] = list(module.reduction_kernel.arg_names)
    return [
        extents[name]
        if name in extents
        else stored[name.removesuffix("_stride")].stride(0)
        if name.endswith("_stride")
        else stored[name.removesuffix("_ptr")]
        for name in names
    ]


def reduction_programs(module: ModuleType, partials: Tensor) -> int:
    """Return how many programs of a module's ``reduction_kernel`` add up these sums: one a piece of D."""
    return partials.numel() // (module.SPLITS.value * module.PIECE_SUMS.value)


def _arguments(
    module: ModuleType, problem: Matmul, inputs: Inputs, d: Tensor, restored: Collection[str]
) -> Iterator[Any]:
    from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
        TensorDescriptor,
    )

    stored = row_major(problem, inputs, d)
    names: list[str] = list(module.matmul_kernel.arg_names)
    if "partials_ptr" in names:
        partials, *counters = _workspace(module, problem, d)
        if "partials_ptr" not in restored:
            partials.fill_(poison(partials.dtype))
        stored |= {"partials": partials, **dict(zip(("counters",), counters, strict=False))}
    access = TensorAccess(problem)
    # Each further part of a tensor's tiles has its own descriptor.
    tensors = {numbered(tensor, part): tensor for tensor in stored for part in (None, *range(len(names)))}
    for argument in names:
        name, _, kind = argument.rpartition("_")
        if kind == "ptr":
            yield stored[name]
        elif kind == "desc":
            passed = "out" if name == "d" else name
            if describe := access.describing_function(name):
                yield getattr(module, describe)(passed, stored[name])
                continue
            block: Mapping[str, Any] = module.TMA[passed]
            name = tensors[name]
            is_packed = name in BLOCK_SCALES and problem.packs_scales
            tensor = packed_scales(module, stored[name]) if is_packed else stored[name]
            if name in ("a", "b") and access.loads_k_from_any_row:
                yield module.describe_rows(argument.removesuffix("_desc"), tensor)
                continue
            rounds = name in ("a", "b") and bool(problem.a.dtype.in_memory)
            yield TensorDescriptor.from_tensor(tensor, **block, round_f32_to_tf32=rounds)
        else:
            raise KeyError(argument)


def packed_scales(module: ModuleType, scales: Tensor) -> Tensor:
    """Return scales of blocks as a module's kernel reads them: 5-D, packed, uint8 for ue8m0."""
    return as_bytes(module.pack_scales(scales))


def as_bytes(scales: Tensor) -> Tensor:
    """Return scales as kernels get them: ue8m0 as uint8, for which Triton has no type."""
    return scales.view(torch.uint8) if scales.dtype == TORCH_DTYPES["ue8m0"] else scales


def row_major(problem: Matmul, inputs: Inputs, d: Tensor) -> dict[str, Tensor]:
    """Return every tensor of a call by its name, matrices with contiguous rows, as they lie in memory."""
    access = TensorAccess(problem)
    a = inputs.a.mT if problem.a.major == "mn" else inputs.a
    b = inputs.b if problem.b.major == "mn" else inputs.b.mT
    a = a if access.has_box_axis("a") else a.flatten(0, -2)
    b = b if access.has_box_axis("b") else b.flatten(0, -2)
    extras = dict(inputs.extras)
    if access.reads_c_of_others:
        extras["c"] = extras["c"].flatten(0, -2)
    for name in () if problem.packs_scales else BLOCK_SCALES:
        scale = problem.operand(name[0]).scale
        if scale is not None:
            stored = extras[name].mT if scale.format.rows == 1 else extras[name]
            stacked = name == "a_scale" and stored.dim() > 2
            extras[name] = as_bytes(stored.flatten(0, 1) if stacked else stored)
    return {"a": a, "b": b, **extras, "d": d}


E2M1: Final = TORCH_DTYPES["e2m1"]
E2M1_NEGATIVE_ZEROS: Final = 0x88
"""Two elements of -0.0."""
WITHOUT_INFINITY: Final = (torch.float8_e4m3fn, torch.int8, E2M1)


def special_values(case: Case) -> Iterator[Check]:
    """Check that NaN and infinities are where torch has them, and that a row of -0.0 keeps torch's signs.

    The first row of A has an infinity, the last a NaN, the middle one is -0.0 throughout; the last column of
    B has a NaN in its last row, which lies in the last K step. Integers have no such values, so there is no
    check for them. A D of 8-bit floats has no infinity either: it holds its largest number instead. The signs
    of a relu's zeros are not checked, because torch's own differ between CPU and GPU.

    e2m1 has neither NaN nor infinity, and its zeros have signs. One scale of a block-scaled operand is also
    NaN, in a row of A and a column of B of its own if there are enough of them.
    """
    if not case.problem.a.dtype.integer:
        inputs = case.inputs()
        zeros = _plant(inputs)
        yield from _compared(case, case.run(inputs), inputs, zeros)


def _plant(inputs: Inputs) -> int | None:
    """Write the values; return the row of -0.0, if there are rows enough for one."""
    m, n, k = inputs.shape
    a = inputs.a.flatten(0, -2)
    if (index := inputs.extras.get("a_rows")) is not None:
        index.copy_(torch.arange(m))  # of the row with each value
    if a.is_floating_point():
        a[-1, k // 2] = math.nan
    if a.dtype not in WITHOUT_INFINITY:
        a[0, 0] = math.inf
    if inputs.b.is_floating_point():
        inputs.b[..., -1, -1] = math.nan
    if (a_scale := inputs.extras.get("a_scale")) is not None:
        # The first row has an infinity, the middle one is -0.0, the last one has a NaN: the row between.
        a_scale[..., m // 4 or -1, a_scale.shape[-1] // 2] = math.nan
    b_scale = inputs.extras.get("b_scale")
    if b_scale is not None and b_scale.is_floating_point():
        b_scale[..., n // 2 * b_scale.shape[-2] // n, -1] = math.nan
    if m < 3:
        return None
    a[m // 2] = E2M1_NEGATIVE_ZEROS if a.dtype == E2M1 else -0.0
    return m // 2


def _compared(case: Case, out: Tensor, inputs: Inputs, zeros: int | None) -> Iterator[Check]:
    nan = infinite = sign = 0
    computed = inputs.computed_rows(out)
    for rows, exact in references(inputs, case.problem):
        expected, found = rounded(exact, out.dtype).float(), computed[rows].float()
        nan += int((expected.isnan() != found.isnan()).sum().item())
        infinite += int((_infinity(expected) != _infinity(found)).sum().item())
        if zeros is not None and zeros in range(len(computed))[rows]:
            row = zeros - rows.start
            sign = int(_other_zeros(expected[row], found[row]).sum().item())
    yield case.check("special values: NaN or no NaN unlike torch", nan, 0)
    yield case.check("special values: infinite or finite unlike torch", infinite, 0)
    if all(op.signed_zeros for op in case.problem.operations):
        yield case.check("special values: zeros of another sign than torch's", sign, 0)


def _infinity(matrix: Tensor) -> Tensor:
    """Return 1 and -1 at the infinities of a matrix, and 0 elsewhere."""
    return torch.where(matrix.isinf(), matrix.sign(), 0.0)


def _other_zeros(expected: Tensor, found: Tensor) -> Tensor:
    return (expected == 0) & (found == 0) & (expected.signbit() != found.signbit())
