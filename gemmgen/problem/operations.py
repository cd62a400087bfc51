"""The operations of an epilogue: one row of a table for each.

A row and, for an activation, a template ``shared/activation_<name>.py.j2`` that defines its function are all
that an operation takes. Nothing here computes: ``reference`` does, with the torch functions named here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from gemmgen.hardware.elements import Names
from gemmgen.hardware.gpus import Table

SIGNIFICANT: float = 16.0
"""Numbers that are multiples of 1 / 16 and no larger than this have few bits: products with small integers
and with one another are exact in fp32."""


@dataclass(frozen=True)
class Parameter:
    """A number of an operation that a spec may state, and that becomes a constant of the module."""

    name: str
    default: float
    low: float
    high: float
    meaning: str
    torch: str = ""
    """The keyword of the torch function; empty for a factor of its argument."""
    limits: bool = False
    """True if it is the least or the largest value of the result."""


@dataclass(frozen=True)
class Operation:
    """An operation of an epilogue on every element x of A @ B."""

    name: str
    text: str
    """In the module's docstring, as an item of a list."""
    operand: Literal["none", "scalar", "row", "column", "matrix"] = "none"
    """Its operand besides x: nothing, one number, one for each row or column of D, or C."""
    effect: Literal["function", "times", "plus"] = "function"
    """Its effect on x: a function of x, which a template defines, a factor, or a term."""
    meaning: str = ""
    """Meaning of its operand, for the docstring of ``matmul``."""

    module: Literal["torch.nn.functional", "torch"] = "torch.nn.functional"
    """The module of the function `torch`."""
    torch: str = ""
    """The function of `module` that is the reference, and that a user of torch would call."""
    stretched: str = ""
    """The parameter by which the argument of `torch` is multiplied, and by which its result is divided."""
    keywords: tuple[tuple[str, str | float], ...] = ()
    """Keywords of that function besides x and the parameters."""
    then: tuple[str, ...] = ()
    """Functions of ``torch`` that are applied to its result, in this order; such as ``square``."""
    parameters: tuple[Parameter, ...] = ()

    register_class: Literal["none", "linear", "quotient", "erf"] = "none"
    """Registers that the compiler keeps while it computes the function: ``linear`` is comparisons and
    products, ``quotient`` an exponential and libdevice's fast division, ``erf`` a polynomial of many
    terms.
    """
    keeps_zero: bool = True
    """True if the function of 0 is 0."""
    homogeneous: bool = False
    """True if a positive factor of x is one of the function: f(s * x) = s * f(x)."""
    exact: bool = False
    """True if the function of a number of few bits has few bits, as long as its parameters have."""
    signed_zeros: bool = True
    """True if torch gives its zeros the same sign on all devices."""
    error: float = 0.0
    """Share of the tolerance for its roundings."""
    also: tuple[str, ...] = ()
    """Other names of it, or of several operations alike."""
    derivative_of: str = ""
    """The activation whose derivative it is; empty for other operations."""

    @property
    def function(self) -> bool:
        """True if it is an activation, a function of x alone."""
        return self.effect == "function"

    @property
    def vector(self) -> bool:
        """True if its operand has one element for each row, or each column, of D."""
        return self.operand in ("row", "column")

    @property
    def along(self) -> Literal["m", "n"]:
        """The dimension of D along which the vector that it takes has its elements."""
        return "m" if self.operand == "row" else "n"

    @property
    def smooth(self) -> bool:
        """True if it takes more than comparisons and products."""
        return self.register_class in ("quotient", "erf")

    def constant(self, parameter: str) -> str:
        """Return the name of the constant that holds a parameter in the module."""
        return f"{self.name}_{parameter}".upper()


@dataclass(frozen=True)
class OpParameter:
    """A parameter of an operation of one spec."""

    op: str
    name: str
    value: float

    @property
    def parameter(self) -> Parameter:
        """The row of the table."""
        return next(row for row in OPERATIONS[self.op].parameters if row.name == self.name)

    @property
    def limits(self) -> bool:
        """True if it is the least or the largest value of a result."""
        return self.parameter.limits


TRANSCENDENTAL = 5e-6
"""GELU and SiLU take a few dozen roundings in fp32 of 2**-24 = 6e-8 each."""

LARGEST_LIMIT: float = 1e30
"""The largest limit of a value, and the reciprocal of the smallest one: numbers that fp32 has room for."""


def _limit(name: str, low: float, high: float, meaning: str) -> Parameter:
    """Return a limit of values between `low` and `high`, by default 1 from 0, with its name in torch."""
    return Parameter(name, math.copysign(1.0, low), low, high, meaning, torch=name, limits=True)


OPERATIONS: Table[Operation] = Table(
    "epilogue operation",
    {
        operation.name: operation
        for operation in (
            Operation("tensor_scale", "times a scale", "scalar", "times", also=("scale",)),
            Operation(
                "row_scale",
                "times a scale for each row",
                "row",
                "times",
                "a factor for each row",
                also=("scale", "router_weight", "expert_weight"),
            ),
            Operation(
                "column_scale",
                "times a scale for each column",
                "column",
                "times",
                "a factor for each column",
                also=("scale",),
            ),
            Operation(
                "row_bias",
                "plus a bias for each row",
                "row",
                "plus",
                "a summand for each row",
                also=("bias",),
            ),
            Operation(
                "column_bias",
                "plus a bias for each column",
                "column",
                "plus",
                "a summand for each column",
                also=("bias", "expert_bias", "group_bias"),
            ),
            Operation("residual", "plus C", "matrix", "plus", also=("add", "c")),
            # torch's own zeros have other signs on a GPU than on a CPU.
            Operation(
                "relu",
                "ReLU",
                torch="relu",
                register_class="linear",
                homogeneous=True,
                exact=True,
                signed_zeros=False,
            ),
            Operation(
                "leaky_relu",
                "leaky ReLU",
                torch="leaky_relu",
                # A slope beyond 1 would make errors larger, and below 0 another function.
                parameters=(
                    Parameter("slope", 0.01, 0.0, 1.0, "factor of negative numbers", torch="negative_slope"),
                ),
                register_class="linear",
                homogeneous=True,
                exact=True,
            ),
            Operation(
                "gelu_tanh",
                "GELU (tanh)",
                torch="gelu",
                keywords=(("approximate", "tanh"),),
                register_class="quotient",
                error=TRANSCENDENTAL,
                also=("gelu",),
            ),
            Operation(
                "gelu_erf",
                "GELU (erf)",
                torch="gelu",
                register_class="erf",
                error=TRANSCENDENTAL,
                also=("gelu",),
            ),
            Operation(
                "silu",
                "SiLU",
                torch="silu",
                register_class="quotient",
                error=TRANSCENDENTAL,
                also=("swish",),
            ),
            Operation(
                "quick_gelu",
                "GELU (logistic)",
                torch="silu",
                stretched="alpha",
                parameters=(
                    Parameter("alpha", 1.702, 2.0**-6, 64.0, "factor of x in the logistic function"),
                ),
                register_class="quotient",
                error=TRANSCENDENTAL,
            ),
            Operation(
                "clamp",
                "limits from below and above",
                module="torch",
                torch="clamp",
                # Limits around 0 keep zeros and their signs.
                parameters=(
                    _limit("min", -LARGEST_LIMIT, -1 / LARGEST_LIMIT, "least value"),
                    _limit("max", 1 / LARGEST_LIMIT, LARGEST_LIMIT, "largest value"),
                ),
                register_class="linear",
                exact=True,
            ),
            Operation(
                "clamp_max",
                "a limit from above",
                module="torch",
                torch="clamp_max",
                parameters=(_limit("max", 1 / LARGEST_LIMIT, LARGEST_LIMIT, "largest value"),),
                register_class="linear",
                exact=True,
            ),
        )
    },
)


def derivative_name(activation: str) -> str:
    """Return the name of the operation that is the derivative of an activation."""
    return f"{activation}_grad"


def _derivative(activation: str, *, keeps_zero: bool = False, smooth: str = "") -> Operation:
    """Return the row of an activation's derivative; `smooth` is its class of registers if it is no choice."""
    row = OPERATIONS[activation]
    return Operation(
        derivative_name(activation),
        f"the derivative of {row.text}",
        parameters=row.parameters,
        register_class=cast("Literal['quotient', 'erf']", smooth) if smooth else "linear",
        keeps_zero=keeps_zero,
        exact=not smooth,
        error=TRANSCENDENTAL if smooth else 0.0,
        derivative_of=activation,
    )


_DERIVATIVES = (
    _derivative("relu", keeps_zero=True),
    _derivative("leaky_relu"),
    _derivative("gelu_tanh", smooth="quotient"),
    _derivative("gelu_erf", smooth="erf"),
    _derivative("silu", smooth="quotient"),
    _derivative("quick_gelu", smooth="quotient"),
    _derivative("clamp"),
    _derivative("clamp_max"),
)
OPERATIONS.update((row.name, row) for row in _DERIVATIVES)

DERIVATIVES = Names(lambda: (name for name, op in OPERATIONS.items() if op.derivative_of))
"""Derivatives of activations, which only expressions have."""
OPS = Names(lambda: (name for name, op in OPERATIONS.items() if not op.derivative_of))
"""All operations that a list of operations can have."""
ACTIVATIONS = Names(lambda: (name for name in OPS if OPERATIONS[name].function))
"""Operations without an operand."""
VECTORS = Names(lambda: (name for name, op in OPERATIONS.items() if op.vector))
"""Operations with an operand of one element for each row, or each column, of D."""
ROW_VECTORS = Names(lambda: (name for name, op in OPERATIONS.items() if op.operand == "row"))
"""Operations with one element for each row."""
SCALES = Names(lambda: (name for name, op in OPERATIONS.items() if op.effect == "times"))
"""Operations that multiply by their operand."""
BLOCK_SCALES = ("a_scale", "b_scale")
"""The arguments that hold the scales of blocks of A and of B."""


def _keywords() -> tuple[str, ...]:
    ranks = {("row", "times"): 0, ("column", "times"): 1, ("scalar", "times"): 2}
    named = [op for op in OPERATIONS.values() if op.operand in ("scalar", "row", "column")]
    ordered = sorted(named, key=lambda op: ranks.get((op.operand, op.effect), len(ranks)))
    return (*BLOCK_SCALES, "c", *(op.name for op in ordered))


KEYWORDS = Names(_keywords)
"""Keywords of a generated ``matmul`` besides A and B, if its spec names them: scales of blocks, C, and the
operands of operations, factors first.
"""


def stated_parameters(ops: Iterable[tuple[str, Mapping[str, float]]]) -> Iterator[OpParameter]:
    """Yield every parameter of the operations once, with its default where it is not stated."""
    stated = dict(reversed([*ops]))
    for op, values in reversed(stated.items()):
        for row in OPERATIONS[op].parameters:
            yield OpParameter(op, row.name, values.get(row.name, row.default))


def torch_call(op: str, x: str, parameters: Iterable[OpParameter]) -> str:
    """Return an activation of x as a user of torch calls it."""
    operation, stated = OPERATIONS[op], tuple(parameters)
    if operation.derivative_of:
        of = operation.derivative_of
        function = torch_call(of, "y", parameters_of_activation(op, stated))
        return f"torch.func.jvp(lambda y: {function}, ({x},), (torch.ones_like({x}),))[1]"
    keywords = (f"{name}={value!r}" for name, value in torch_keywords(op, stated).items())
    factor = stretch_of(op, stated)
    argument = x if factor is None else f"{factor!r} * {x}"
    text = f"{operation.module}.{operation.torch}({', '.join((argument, *keywords))})"
    if factor is not None:
        text = f"({text} / {factor!r})"
    for function in operation.then:
        text = f"torch.{function}({text})"
    return text


def parameters_of_activation(derivative: str, stated: Iterable[OpParameter]) -> tuple[OpParameter, ...]:
    """Return the parameters of a derivative as parameters of its activation."""
    return tuple(replace(each, op=OPERATIONS[derivative].derivative_of) for each in stated)


def torch_keywords(op: str, parameters: Iterable[OpParameter]) -> dict[str, str | float]:
    """Return the keywords of an activation's function of torch, besides x.

    Raises KeyError if `op` is not an activation.
    """
    operation = OPERATIONS[op]
    if not operation.function:
        raise KeyError(f"{op} is not a function of torch")
    stated = {
        found.parameter.torch: found.value
        for found in parameters
        if found.op == op and found.name != operation.stretched
    }
    return dict(operation.keywords) | stated


def stretch_of(op: str, parameters: Iterable[OpParameter]) -> float | None:
    """Return the factor of the argument of an activation's function of torch; None if it has none."""
    name = OPERATIONS[op].stretched
    return next((found.value for found in parameters if (found.op, found.name) == (op, name)), None)


def few_bits(number: float) -> bool:
    """Return True if sums and products of this number and small integers are exact in fp32."""
    return (SIGNIFICANT * number).is_integer() and abs(number) <= SIGNIFICANT
