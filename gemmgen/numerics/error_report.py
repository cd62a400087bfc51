"""The arithmetic of a kernel for people: its bits, its order of sums, its error by K and kind of inputs."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.module import MatmulFunction
from gemmgen.numerics.accumulator import Accumulator, Factor, accumulator_of, bound, sums
from gemmgen.numerics.drawing import drawn_inputs
from gemmgen.numerics.encoding import E2M1_VALUES, TORCH_DTYPES, decoded, encoded, rounded_to_tf32
from gemmgen.numerics.inputs import Numbers
from gemmgen.numerics.matrices import Draw, Layout
from gemmgen.numerics.reference import deviation
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.matmul import Operand

Kind = Literal["normal", "wide", "cancelling"]
KINDS: Final[dict[Kind, str]] = {
    "normal": "N(0, 1)",
    "wide": "wide range",
    "cancelling": "cancelling",
}
"""Kinds of inputs, in words.

``normal``: all elements are N(0, 1); int8 and e2m1 are any of their numbers, equally likely. ``wide``: these
numbers times powers of two, all of a range equally likely; e2m1 has wide scales instead.
``cancelling``: magnitudes, whose products the second half of K subtracts again, except one in 16.
"""
SPREAD: Final = {"e4m3": 4, "e5m2": 6, "int8": 0, "e2m1": 0}
"""Exponents of the powers of two of ``wide`` go from minus this number to it; 8 for other types."""
SPREAD_OF_OTHERS: Final = 8
SPREAD_OF_SCALES: Final = 4
FRESH: Final = 16
"""Products of ``cancelling`` among which one is not subtracted."""
EXTENT: Final = 16
"""Rows of A and columns of B of the model."""
DEPTHS: Final = (256, 1024, 4096, 16384)
"""K of the model, beside the K for which the kernel is planned."""
DEPTH_MULTIPLE: Final = 64
"""A K is rounded up to a multiple of this, as TMA fills the rest of an instruction with zeros."""
MEASURED_EXTENT: Final = 256
"""M and N of a measurement on a GPU."""


@dataclass(frozen=True)
class InputError:
    """The error of A @ B for one kind of inputs, beside fp64."""

    kind: Kind
    relative: float
    """||out - ref|| / ||ref||, Frobenius norms."""
    of_magnitudes: float
    """Largest |out - ref| of an element over the sum of the magnitudes of its products."""


@dataclass(frozen=True)
class Depth:
    """Errors for one K."""

    k: int
    bound: float
    """Most that an element can be off, over the sum of the magnitudes of its products; 1 says nothing."""
    errors: tuple[InputError, ...]


@dataclass(frozen=True)
class ErrorReport:
    """The arithmetic of one kernel and its errors."""

    arithmetic: tuple[tuple[str, str], ...]
    """Names and sentences."""
    accumulator: Accumulator | None
    """None for integers."""
    promote_k: int
    """Elements of K after which sums are promoted; 0 for never."""
    depths: tuple[Depth, ...]
    measured: tuple[tuple[Kind, float], ...] = ()
    """||out - ref|| / ||ref|| of the module's D on a GPU, by kind of inputs; empty without a GPU."""
    measured_shape: Shape | None = None

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "arithmetic": dict(self.arithmetic),
            "accumulator": asdict(self.accumulator) if self.accumulator else None,
            "promote_k": self.promote_k,
            "depths": [asdict(depth) for depth in self.depths],
            "measured": dict(self.measured),
            "measured_shape": self.measured_shape and list(self.measured_shape),
        }

    def __str__(self) -> str:
        lines = [f"  {name:<12} {said}" for name, said in self.arithmetic]
        if self.accumulator is None:
            return "\n".join((*lines, *self._on_gpu))
        header = "".join(f"{name:>12}" for name in KINDS.values())
        lines += ["", f"modelled on the CPU, {EXTENT} x {EXTENT} elements of A @ B beside fp64, not measured"]
        lines += ["", f"{'||error|| / ||A @ B||':<32}{header}"]
        lines += (self._row(depth, (error.relative for error in depth.errors)) for depth in self.depths)
        lines += ["", f"{'largest |error| / sum of |a b|':<32}{header}{'bound':>12}"]
        for depth in self.depths:
            found = self._row(depth, (error.of_magnitudes for error in depth.errors))
            lines.append(f"{found}{_bounded(depth.bound):>12}")
        return "\n".join((*lines, *self._on_gpu))

    @property
    def _on_gpu(self) -> Iterator[str]:
        """Yield the lines of a measurement, if there is one."""
        if self.measured and self.measured_shape:
            extents = " x ".join(f"{extent:,}" for extent in self.measured_shape)
            yield from ("", f"measured on the GPU of this machine, {extents}: ||error of D|| / ||D||")
            yield from (f"  {KINDS[kind]:<12} {error:.1e}" for kind, error in self.measured)

    @staticmethod
    def _row(depth: Depth, errors: Iterable[float]) -> str:
        return f"  K = {depth.k:<26,}" + "".join(f"{error:>12.1e}" for error in errors)


def _bounded(bound: float) -> str:
    """Return a bound in words."""
    return f"{bound:.1e}" if bound < 1 else "none"


def error_report(kernel: Kernel, *, seed: int = 0, depths: Iterable[int] | None = None) -> ErrorReport:
    """Return the arithmetic of a kernel, and its modelled errors for some K.

    Without ``depths``, these are `DEPTHS` and the K that the kernel is planned for.
    """
    problem, order = kernel.problem, kernel.sum_order
    planned = max(problem.depths_of_groups(kernel.request.planned_shapes[0][2]))
    wanted = {-(-k // DEPTH_MULTIPLE) * DEPTH_MULTIPLE for k in depths or (*DEPTHS, planned)}
    unit, in_threads = accumulator_of(kernel), problem.scales_sums
    found: list[Depth] = []
    with _one_thread():
        for k in sorted(wanted):
            errors = tuple(_modelled(kernel, unit, kind, k, seed) for kind in KINDS)
            found.append(Depth(k, bound(unit, order, k, in_threads=in_threads), errors))
    return ErrorReport(tuple(_arithmetic(kernel, unit)), unit, order.promote_k, tuple(found))


@contextmanager
def _one_thread() -> Generator[None]:
    """Let torch use one thread: the tensors of the model are too small for several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _modelled(kernel: Kernel, unit: Accumulator | None, kind: Kind, k: int, seed: int) -> InputError:
    generator = torch.Generator().manual_seed(seed)
    a, b = factors(kind, kernel.problem, (EXTENT, EXTENT, k), generator)
    found = sums(unit, kernel.sum_order, a, b, in_threads=kernel.problem.scales_sums)
    exact, magnitudes = a.numbers @ b.numbers.T, a.numbers.abs() @ b.numbers.abs().T
    error = found - exact
    relative = math.sqrt(float(error.square().sum().item()) / float(exact.square().sum().item()))
    return InputError(kind, relative, float((error.abs() / magnitudes).max().item()))


def _arithmetic(kernel: Kernel, unit: Accumulator | None) -> Iterator[tuple[str, str]]:
    """Yield the parts of a kernel's arithmetic, each with a sentence."""
    problem, order = kernel.problem, kernel.sum_order
    a, b, accumulator = problem.a.multiplied.name, problem.b.multiplied.name, problem.accumulator.name
    if unit is None:
        yield "products", f"{a} by {b}, added exactly in {accumulator} in any order"
        yield "conversion", _conversion(problem)
        return
    grouped = f", sums of {unit.grouped} exactly" if unit.grouped > 1 else ""
    yield "products", f"{a} by {b}, {unit.terms} and the sum so far are added at once{grouped}"
    cut = "cut off" if unit.cuts_off else "rounded to nearest even"
    bits = f"{accumulator} with {unit.bits} significant bits, {cut}"
    yield "accumulator", f"{bits}; terms keep {unit.aligned_bits} bits below the largest exponent"
    after = f"after {order.promote_k} of K, added in fp32 to nearest even" if order.promote_k else "none"
    yield "promotion", after + (", times the scales of the block" if problem.scales_sums else "")
    yield "order", _order(kernel)
    yield "conversion", _conversion(problem)
    model = "Hopper" if kernel.architecture.mma == "wgmma" else "Blackwell"
    yield "source", f"MMA-Sim's model of {model} (arXiv 2511.10909)"


def _order(kernel: Kernel) -> str:
    """Return the order in which the parts of K are added, in words."""
    order = kernel.sum_order
    match order.parts:
        case "whole":
            return "all K in one program, in the order of K"
        case "atomic":
            return f"{order.splits} parts of K, added when they are ready; the model takes the order of K"
        case "ordered":
            return f"{order.splits} parts of K, added in the order of K"
        case "parallel":
            pairs = f", {order.side_by_side} threads in turn and then by pairs" * (order.side_by_side > 1)
            return f"{order.splits} parts of K, added by a second kernel{pairs}"


def _conversion(problem: Matmul) -> str:
    """Return what D costs beyond the sums, in words."""
    name, half = problem.d.name, problem.d.half_ulp
    if not half:
        return f"D {name}, exact within its range"
    return f"D {name}, rounded once by at most {half:.1e} of an element; the errors below are without it"


# --- inputs


def factors(kind: Kind, problem: Matmul, shape: Shape, generator: torch.Generator) -> tuple[Factor, Factor]:
    """Return A [M, K] and the columns of B [N, K] of a kind, in the elements and scales of a problem."""
    m, n, k = shape
    a = _factor(kind, problem.a, m, k, generator, subtracted=False)
    return a, _factor(kind, problem.b, n, k, generator, subtracted=True)


def _factor(
    kind: Kind, operand: Operand, rows: int, k: int, generator: torch.Generator, *, subtracted: bool
) -> Factor:
    dtype = operand.dtype
    if dtype.coded:
        drawn = E2M1_VALUES[torch.randint(len(E2M1_VALUES), (rows, k), generator=generator)]
    elif dtype.integer:
        drawn = torch.randint(-128, 128, (rows, k), generator=generator).double()
    else:
        drawn = torch.randn(rows, k, dtype=torch.float64, generator=generator)
    if kind == "wide" and (spread := SPREAD.get(dtype.name, SPREAD_OF_OTHERS)):
        drawn = drawn * torch.exp2(
            torch.randint(-spread, spread + 1, (rows, k), generator=generator).double()
        )
    if kind == "cancelling":
        drawn = _cancelling(drawn, subtracted=subtracted)
    elements = of_type(drawn, dtype.name)
    if operand.scale is None:
        return Factor(elements, dtype.name)
    return Factor(elements, dtype.name, _scales(kind, operand, rows, k, generator), operand.scale.vector)


def _cancelling(drawn: Tensor, *, subtracted: bool) -> Tensor:
    """Return magnitudes whose second half along K repeats the first, negative if they are subtracted."""
    half = drawn.shape[1] // 2
    first, second = drawn[:, :half].abs(), drawn[:, half : 2 * half].abs()
    fresh = torch.arange(half) % FRESH == 0
    second = torch.where(fresh, second, first)
    return torch.cat((first, -second if subtracted else second, drawn[:, 2 * half :]), dim=1)


def _scales(kind: Kind, operand: Operand, rows: int, k: int, generator: torch.Generator) -> Tensor:
    """Return a scale for each block of K of each row; rows that share a scale have equal ones."""
    scale = operand.scale
    assert scale is not None
    extents = scale.extents(rows, k)
    if scale.format.dtype == "ue8m0":
        drawn = torch.exp2(torch.randint(-2, 3, extents, generator=generator).double())
    else:
        drawn = torch.rand(extents, dtype=torch.float64, generator=generator) * 1.5 + 0.5
    if kind == "wide":
        powers = torch.randint(-SPREAD_OF_SCALES, SPREAD_OF_SCALES + 1, extents, generator=generator)
        drawn = drawn * torch.exp2(powers.double())
    half = extents[1] // 2
    if kind == "cancelling" and half * 2 == extents[1]:
        drawn = torch.cat((drawn[:, :half], drawn[:, :half]), dim=1)
    stored = of_type(drawn, scale.dtype.name)
    return stored.repeat_interleave(scale.format.rows, dim=0)[:rows]


def of_type(numbers: Tensor, dtype: str) -> Tensor:
    """Return numbers rounded to an element type, in float64; tf32 as TMA rounds it."""
    if dtype == "tf32":
        return rounded_to_tf32(numbers.float()).double()
    return decoded(encoded(numbers, dtype), dtype)


# --- on a GPU


def measured_errors(
    matmul: MatmulFunction,
    problem: Matmul,
    sides: tuple[Numbers, ...],
    shape: Shape,
    device: torch.device,
    *,
    seed: int = 0,
) -> Iterator[tuple[Kind, float]]:
    """Yield ||out - ref|| / ||ref|| of D for each kind of inputs, as a module computes it on a device.

    C, vectors and other inputs are random ones; the ``sides`` belong to the problem's features. Groups are
    not supported.
    """
    m, n, k = shape
    for kind in KINDS:
        draw = Draw(torch.Generator(device).manual_seed(seed))
        inputs = drawn_inputs(Layout(shape, device, draw), problem, sides)
        columns = (m, problem.columns_of_b(n), k)
        a, b = factors(kind, problem, columns, torch.Generator().manual_seed(seed))
        inputs.a.copy_(stored(a))
        inputs.b.copy_(stored(b).T)
        for name, factor, operand in (("a_scale", a, problem.a), ("b_scale", b, problem.b)):
            if factor.scales is not None and operand.scale is not None:
                each = factor.scales[:: operand.scale.format.rows]
                inputs.extras[name].copy_(encoded(each, operand.scale.dtype.name))
        yield kind, deviation(inputs.call(matmul), inputs, problem).relative


def stored(factor: Factor) -> Tensor:
    """Return the elements of a factor as they lie in memory, with K along rows."""
    if factor.dtype == "tf32":
        return factor.elements.to(TORCH_DTYPES["fp32"])
    return encoded(factor.elements, factor.dtype)
