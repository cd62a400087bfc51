"""Rules that both families share, and findings that a rule of each family yields."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from gemmgen.hardware import Architecture
from gemmgen.hardware.elements import FP8
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below, round_up
from gemmgen.plan.decisions import LINES
from gemmgen.plan.fix import OWN, Fix, at_most, hint, leave_out, nearest, use
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Finding, counted, rule
from gemmgen.problem import OPERATIONS, Matmul, Request
from gemmgen.problem.epilogue import MATRIX, Value, written
from gemmgen.spec.values import SIZE_LIMIT

# --- the problem

FP32_MIN = 2.0**-126
"""The smallest normal number of fp32."""
FP32_MAX = (2 - 2.0**-23) * 2.0**127
FP32_NUMBERS = f"the epilogue computes in fp32, with numbers from {FP32_MIN:.1e} to {FP32_MAX:.1e}"


@dataclass(frozen=True)
class Rows:
    """The rows of a contiguous matrix, whose length is an extent of the problem."""

    matrix: str
    axis: int
    """The axis of the problem: M, N or K."""
    multiple: int
    """The number of elements that a row must be a multiple of, for TMA."""
    size: Callable[[int], str]
    """Function that returns the length of a number of elements, with its unit."""
    limit: str
    """Why only multiples are taken."""
    copyable: bool = True
    """True if a copy of the matrix could have other rows."""


def unaligned_shapes(request: Request, matrices: Iterable[Rows], *, copyable: bool) -> Iterator[Finding]:
    """Yield a finding for each extent of a listed problem that gives rows over which TMA cannot stride.

    An extent is reported once, for the matrix with the longest multiple, which suits the others too. Where
    the wrapper copies such a matrix, each extent is legal; `copyable` says whether it could.
    """
    if request.matmul.copies_misaligned:
        return
    matrices = sorted(matrices, key=lambda rows: -rows.multiple)
    for field, axis, extent in request.stated_extents():
        unaligned = (rows for rows in matrices if rows.axis == axis and extent % rows.multiple)
        if rows := next(unaligned, None):
            below, above = extent // rows.multiple * rows.multiple, round_up(extent, rows.multiple)
            most = SIZE_LIMIT // rows.multiple * rows.multiple
            fix = nearest(below, above, low=rows.multiple, high=most)
            yield Finding(
                field,
                f"{'MNK'[axis]} = {extent:,} gives {rows.matrix} rows of {rows.size(extent)}",
                rows.limit,
                fix | use("copy", field="operands.misaligned") if copyable and rows.copyable else fix,
            )


def unequal_types(problem: Matmul, mma: str) -> Iterator[Finding]:
    """Yield findings for operands of two types: instructions mix only 8-bit floats."""
    a, b = problem.a.multiplied.name, problem.b.multiplied.name
    if a != b and not (a in FP8 and b in FP8):
        yield Finding(
            "operands.b.dtype",
            f"B is {problem.b.dtype.name} and A is {problem.a.dtype.name}",
            f"{mma} multiplies operands of one type, and of different ones only e4m3 and e5m2",
            use(*FP8 if a in FP8 else (a,)),
        )


@rule("epilogue-ops", subject="problem")
def epilogue_ops(plan: Kernel) -> Iterator[Finding]:
    """Operations occur once, except a ReLU after a factor or a sum; adding C requires a C."""
    problem, listed = plan.problem, plan.request.listed
    if listed is None:
        names = (step.name for step in problem.epilogue.steps)
        if problem.gated:  # the same tensor may be used once for each accumulator
            names = (name for name in names if OPERATIONS.get(name) is None or OPERATIONS[name].function)
        for op, limit in _repeated(tuple(names)).values():
            fix = without_expression() | hint("it once")
            yield Finding("epilogue.d", f"{op} a second time", limit, fix)
        return
    for i, (op, limit) in _repeated(listed.ops).items():
        yield Finding(f"epilogue.ops.{i}", f"{op} a second time", limit, leave_out())
    if listed.lists_c and problem.c is None:
        yield Finding(
            f"epilogue.ops.{listed.ops.index('residual')}",
            "residual without a C",
            "it adds the matrix operands.c",
            leave_out() | hint("it with an operands.c"),
        )


def _repeated(names: tuple[str, ...]) -> dict[int, tuple[str, str]]:
    """Return the operations of a list that cannot follow those before them, with the reason, by their places.

    Steps outside the table, such as a product with a number, may repeat.
    """
    found = {
        i: (name, _unrepeatable(names[:i], name))
        for i, name in enumerate(names)
        if name in names[:i] and name in OPERATIONS
    }
    return {i: (name, limit) for i, (name, limit) in found.items() if limit}


def _unrepeatable(ops: tuple[str, ...], op: str) -> str:
    """Return why an operation cannot occur a second time after others; an empty text if it can.

    [gluon] SiLU on both sides of a scale spills 24 bytes in a Hopper kernel whose registers hold it once.
    """
    if OPERATIONS[op].operand != "none":
        return "an operation's operand is passed under its name, once"
    if OPERATIONS[op].parameters:
        return "an activation's parameters are constants of the module under its name, once"
    if OPERATIONS[op].register_class != "linear":
        return "the registers that a thread computes it in were measured for one, and some kernels spill two"
    last = len(ops) - 1 - ops[::-1].index(op)
    if all(between in OPERATIONS and OPERATIONS[between].function for between in ops[last:]):
        return "an activation again, with nothing but activations in between, is most likely a slip"
    return ""


@rule("epilogue-factors", subject="problem")
def epilogue_factors(plan: Kernel) -> Iterator[Finding]:
    """A factor belongs to a matrix and is a number that fp32 computes with: Gluon takes others as fp64."""
    problem, listed = plan.problem, plan.request.listed
    if listed is None:
        yield from _unusable_numbers(problem)
        return
    if listed.beta != 1 and (problem.c is None or listed.lists_c):
        why = "without a C" if problem.c is None else "for a C that residual adds"
        limit = "it is the factor of operands.c" if problem.c is None else "residual adds C as it is"
        yield Finding(
            "epilogue.beta",
            f"a factor of {listed.beta:g} {why}",
            limit,
            leave_out() | hint("it with a C that is added to the product"),
        )
    yield from _unusable_factor("alpha", listed.alpha, "A @ B")
    if problem.c:
        yield from _unusable_factor("beta", listed.beta, "C")


def _unusable_numbers(problem: Matmul) -> Iterator[Finding]:
    """Yield findings for numbers of an expression that an epilogue in fp32 cannot use."""
    for number in problem.epilogue.numbers:
        if number == 0:
            limit = "D would not depend on what it multiplies"
            fix = without_expression() | hint("another factor")
            yield Finding("epilogue.d", "a factor of 0", limit, fix)
        elif not FP32_MIN <= abs(number) <= FP32_MAX:
            fix = without_expression() | hint("one of those")
            yield Finding("epilogue.d", f"the number {number:g}", FP32_NUMBERS, fix)


def without_expression(field: str = OWN) -> Fix:
    """Return the fix that leaves out an expression of D, and the accumulators that it is of."""
    names = leave_out("epilogue.accumulators") & leave_out("epilogue.columns") & leave_out("epilogue.c")
    return leave_out(field) & names & leave_out("epilogue.save")


@rule("epilogue-expression", subject="problem")
def epilogue_expression(plan: Kernel) -> Iterator[Finding]:
    """An expression keeps one value for each accumulator; a step has a number or a tensor; it reads any C."""
    if plan.request.listed is not None:
        return
    problem, epilogue, c = plan.problem, plan.problem.epilogue, plan.problem.c
    if MATRIX in epilogue.loads and c is None:
        fix = without_expression() | hint("an expression without it, or an operands.c")
        yield Finding("epilogue.d", "c without a C", "it is the matrix operands.c", fix)
    if MATRIX not in epilogue.loads and c is not None:
        fix = without_expression() | leave_out("operands.c") | hint("it as c in the expression")
        yield Finding("epilogue.d", "an expression without c", "nothing reads the matrix operands.c", fix)
    if (other := epilogue.beside_the_chain) is not None:
        yield _beside(problem, other)
    for name, count in epilogue.uses.items():
        if count > len(epilogue.accumulators):
            limit = "kernels read a loaded tensor once, and keep it for no other step"
            often = hint("it once")
            if plan.problem.gated:
                limit, often = "kernels use a loaded tensor once for each accumulator", hint("it twice")
            fix = without_expression() | often
            yield Finding("epilogue.d", f"{name} {count} times", limit, fix)


def _beside(problem: Matmul, other: Value) -> Finding:
    """Return the finding for a value that would have to be kept beside one for each accumulator."""
    found = f"{written(other)} beside another value"
    limit = (
        "only chains are supported: each step applies an operation, a number or a tensor to the value of the"
        " step before"
    )
    form = "a chain of steps, as silu(acc * row_scale) + c"
    if problem.gated:
        limit = "only two chains are supported, one for each accumulator, that a step joins"
        form = "a step that joins two chains, as silu(gate) * up"
    return Finding("epilogue.d", found, limit, without_expression() | hint(form))


def _unusable_factor(name: str, factor: float, matrix: str) -> Iterator[Finding]:
    """Yield findings for alpha or beta if an epilogue in fp32 cannot use it."""
    if factor == 0:
        fix = leave_out() | hint("another factor")
        yield Finding(
            f"epilogue.{name}",
            f"a factor of 0 for {matrix}",
            "D would not depend on it",
            fix | leave_out("operands.c") if name == "beta" else fix,
        )
    elif not FP32_MIN <= abs(factor) <= FP32_MAX:
        yield Finding(
            f"epilogue.{name}",
            f"a factor of {factor:g} for {matrix}",
            FP32_NUMBERS,
            leave_out() | hint("one of those"),
        )


def narrowest_subtile(plan: Kernel) -> int:
    """Return the fewest columns of a sub-tile whose rows of C and D TMA can move."""
    dtypes = (plan.problem.d, *((plan.problem.c,) if plan.problem.c else ()))
    return max(plan.architecture.tma_alignment_bytes // dtype.bytes for dtype in dtypes)


# --- programs and the order of tiles


def cluster_shapes(most: int) -> frozenset[tuple[int, int]]:
    """Return all clusters of powers of two of CTAs along M and N with at most `most` CTAs."""
    sides = [1 << i for i in range(most.bit_length())]
    return frozenset((m, n) for m in sides for n in sides if m * n <= most)


def oversized_cluster(plan: Kernel, shapes: Collection[tuple[int, int]], *, why: str) -> Iterator[Finding]:
    """Yield findings for clusters that are no powers of two, or larger than every allowed shape."""
    if (sides := (plan.cluster_m, plan.cluster_n)) in shapes:
        return
    most = max(m * n for m, n in shapes)
    possible = [any(sides[i] == shape[i] for shape in shapes) for i in range(2)]
    for i, field in enumerate("mn"):
        ctas, beside = sides[i], sides[1 - i] if possible[1 - i] else 1
        high = max(shape[i] for shape in shapes if shape[1 - i] == beside)
        below, found = power_of_two_below(ctas), f"{ctas:,} CTAs along {field.upper()}"
        if not is_power_of_two(ctas):
            limit = f"a cluster has a power of two of CTAs along M and along N, and at most {most} in all"
            yield Finding(f"cluster.{field}", found, limit, nearest(below, 2 * below, high=high))
        elif not possible[i] or (all(possible) and plan.cluster_size > most and i == sides.index(max(sides))):
            if possible[i]:
                found = f"{ctas} of {plan.cluster_m} x {plan.cluster_n} CTAs along {field.upper()}"
            limit = f"a cluster has at most {most} in all: {why}"
            yield Finding(f"cluster.{field}", found, limit, at_most(high))


MAX_WIDTH = 4_096
"""[derived] The tiles of a group are counted in 32 bits: this leaves N 2**19 tiles, 4 million columns."""
MAX_SQUARE = 64
"""[derived] The curve takes five selects per halving of the square: 64 tiles, six halvings, fill any L2."""


@rule("group-width")
def group_width(plan: Kernel) -> Iterator[Finding]:
    """The tiles of a group fit into the integers that count them, and a curve fills a square."""
    field = "schedule.width"
    if plan.schedule_kind == "single_tile":
        return
    if plan.order in LINES:
        if plan.width > 1:
            found = f"groups of {plan.width:,} in the order {plan.order}"
            yield Finding(field, found, f"it walks over one {plan.order} of tiles at a time", use(1))
    elif plan.order == "hilbert":
        if not is_power_of_two(plan.width) or not 2 <= plan.width <= MAX_SQUARE:
            below = power_of_two_below(plan.width)
            yield Finding(
                field,
                f"squares of {counted(plan.width, 'tile')}",
                f"a Hilbert curve fills those whose sides are powers of two, here from 2 to {MAX_SQUARE}",
                nearest(below, 2 * below, low=2, high=MAX_SQUARE),
            )
    elif plan.width > MAX_WIDTH:
        lines = "rows" if plan.minor == "m" else "columns"
        yield Finding(
            field,
            f"groups of {plan.width:,} {lines} of tiles",
            f"their tiles are counted in 32 bits, which hold those of {MAX_WIDTH:,}",
            at_most(MAX_WIDTH),
        )


@rule("minor-dimension")
def minor_dimension(plan: Kernel) -> Iterator[Finding]:
    """Only orders of groups have a choice of the dimension along which neighbours follow."""
    fixed = {
        **{order: (minor, f"tiles of a {order} follow one another") for order, minor in LINES.items()},
        "hilbert": ("m", "a curve has no minor dimension"),
    }
    if plan.order not in fixed or plan.schedule_kind == "single_tile":
        return
    minor, reason = fixed[plan.order]
    if plan.minor != minor:
        found = f"{plan.minor} in the order {plan.order}"
        yield Finding("schedule.minor", found, reason, use(minor) | leave_out())


# --- tiles, registers and buffers


def odd_extents(extents: Iterable[tuple[str, int, int, int | None]]) -> Iterator[Finding]:
    """Yield the extents that no block can have; each is given as field, extent, lowest and highest legal.

    None for the highest is no limit but that of all extents in a spec.
    """
    for field, extent, low, high in extents:
        if not is_power_of_two(extent):
            below = power_of_two_below(extent)
            yield Finding(
                field,
                f"{extent:,} is not a power of two",
                "Gluon's block extents are powers of two",
                nearest(below, 2 * below, low=low, high=high or power_of_two_below(SIZE_LIMIT)),
            )


def expressible(architecture: Architecture, registers: int) -> bool:
    """Return True if ``setmaxnreg`` can request this number of registers."""
    inside = architecture.setmaxnreg_min <= registers <= architecture.setmaxnreg_max
    return inside and registers % architecture.setmaxnreg_granularity == 0


def inexpressible_request(
    architecture: Architecture, role: str, registers: int, *, least: int | None, most: int | None = None
) -> Iterator[Finding]:
    """Yield a finding for a role's registers outside the range from `least` to `most`.

    None stands for no limit.
    """
    step, low, high = (
        architecture.setmaxnreg_granularity,
        architecture.setmaxnreg_min,
        architecture.setmaxnreg_max,
    )
    if not expressible(architecture, registers):
        yield Finding(
            f"warp_specialization.registers.{role}",
            f"{registers:,} registers per {role} thread",
            f"setmaxnreg takes multiples of {step} from {low} to {high}",
            nearest(
                registers // step * step,
                round_up(registers, step),
                low=min(least or low, most or high),
                high=most or high,
            ),
        )


def misfit_buffers(plan: Kernel) -> Iterator[Finding]:
    """Yield findings for the number of buffers of legal sub-tiles."""
    buffers, subtiles = plan.epilogue_buffers, plan.subtiles
    what = "a tile stored whole" if subtiles == 1 else f"the {subtiles} sub-tiles of a tile"
    found = f"{buffers} buffers for {what}"
    if plan.even_buffers and (buffers > subtiles or subtiles % buffers):
        even = _divisors(subtiles)
        below = max(count for count in even if count <= buffers)
        above = min((count for count in even if count >= buffers), default=below)
        limit = (
            "a tile uses each buffer equally often, or the next one would overwrite what a store still reads"
        )
        yield Finding("buffering.epilogue", found, limit, nearest(below, above))
    elif buffers > subtiles:
        limit = "each holds a sub-tile, and the others would stay empty"
        fix = at_most(subtiles) if subtiles > 1 else use(1)
        yield Finding("buffering.epilogue", found, limit, fix)


def _divisors(number: int) -> set[int]:
    """Return what divides a number, found up to its root: an illegal tile may have a billion sub-tiles."""
    small = [count for count in range(1, math.isqrt(number) + 1) if number % count == 0]
    return {*small, *(number // count for count in small)}
