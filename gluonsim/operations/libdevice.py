"""Functions of CUDA's libdevice, by name; the others are refused by theirs.

They are computed in fp64 and rounded once: libdevice is within some ulp of that, its fast functions farther.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import Type, dtype_of
from gluonsim.operations import resolved
from gluonsim.operations.arith import Number, as_tensor, once, rounded
from gluonsim.program import Agent, Handler
from gluonsim.ptx.rounding import fused, nearest

One = Callable[[Tensor], Tensor]
Function = Callable[..., Tensor]


def _positive_difference(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x <= y, 0.0, x - y)


def _saturated(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0).clamp(0.0, 1.0)


_ONE: Mapping[str, One] = {
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cbrt": lambda x: torch.copysign(x.abs() ** (1 / 3), x),
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "exp10": lambda x: 10**x,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fabs": torch.abs,
    "floor": torch.floor,
    "lgamma": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "nearbyint": torch.round,
    "normcdf": lambda x: torch.erfc(-x / math.sqrt(2)) / 2,
    "rint": torch.round,
    "round": lambda x: torch.copysign((x.abs() + 0.5).floor(), x),
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
}
_TWO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "fdim": _positive_difference,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "pow": torch.pow,
}
_FAST = ("cos", "exp", "exp10", "log", "log10", "log2", "sin", "tan")
_TESTS: Mapping[str, One] = {
    "__nv_finitef": torch.isfinite,
    "__nv_isfinited": torch.isfinite,
    "__nv_isinfd": torch.isinf,
    "__nv_isinff": torch.isinf,
    "__nv_isnand": torch.isnan,
    "__nv_isnanf": torch.isnan,
    "__nv_signbitd": torch.signbit,
    "__nv_signbitf": torch.signbit,
}
_ROUNDED: Mapping[str, Function] = {
    "add": torch.add,
    "div": torch.div,
    "mul": torch.mul,
    "rcp": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "sub": torch.sub,
}


def _named() -> Iterator[tuple[str, Function]]:
    """Yield functions of floats by the names of libdevice."""
    for name, function in {**_ONE, **_TWO}.items():
        yield f"__nv_{name}f", function
        yield f"__nv_{name}", function
    for name in _FAST:
        yield f"__nv_fast_{name}f", _ONE[name]
    yield "__nv_fast_powf", torch.pow
    yield "__nv_fast_fdividef", torch.div
    for name, function in _ROUNDED.items():
        yield f"__nv_f{name}_rn", function
    yield "__nv_saturatef", _saturated
    yield "__nv_fmaf", fused
    yield "__nv_fmaf_rn", fused


FUNCTIONS: Mapping[str, Function] = dict(_named())


@resolved("tt.extern_elementwise", "symbol", ignored=("libname", "libpath", "pure"), computes=True)
def extern_elementwise(op: Operation) -> Handler:
    """Return what applies a function to each element."""
    symbol = str(op.attributes["symbol"])
    compute: Function | None = _test(_TESTS[symbol]) if symbol in _TESTS else FUNCTIONS.get(symbol)
    if compute is None or any(not dtype_of(type_.element).is_floating_point for type_ in op.operand_types):
        types = ", ".join(type_.element for type_ in op.operand_types)
        message = f"libdevice's {symbol} of {types} is not known to the simulator"
        raise refusal(message, op.location, "unknown-operation")
    type_ = op.result_types[0]

    def run(agent: Agent, op: Operation) -> Number:
        operands = [
            as_tensor(agent.get(name), each) for name, each in zip(op.operands, op.operand_types, strict=True)
        ]
        return rounded(once(agent, op, operands, lambda: _computed(compute, operands, type_)), type_)

    return run


def _test(holds: One) -> One:
    return lambda x: holds(x).to(torch.int32)


def _computed(compute: Function, operands: list[Tensor], type_: Type) -> Tensor:
    found = compute(*(value.double() for value in operands))
    return nearest(found, dtype_of(type_.element)) if found.is_floating_point() else found
