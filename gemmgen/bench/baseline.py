"""The baseline of a spec: the calls of torch that a user would make for the same result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmgen.bench.torch_matmul import head_of
from gemmgen.features.checking import sides_of
from gemmgen.hardware.elements import FP8
from gemmgen.numerics.encoding import TORCH_DTYPES, DType, saturated
from gemmgen.numerics.evaluation import activated, evaluated_d, evaluated_operand, sums_of
from gemmgen.numerics.evaluation import operand as loaded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.torch_call import Call, Head, Vectors
from gemmgen.problem import Matmul
from gemmgen.problem.epilogue import (
    ACCUMULATOR,
    ATOM_RANK,
    PLAIN,
    TIMES,
    Epilogue,
    Load,
    Number,
    Spelled,
    Spelling,
    Value,
    fold,
)
from gemmgen.problem.epilogue import Call as EpilogueCall
from gemmgen.problem.epilogue import Step as EpilogueStep
from gemmgen.problem.operations import torch_call
from gemmgen.spec import SpecFile


@dataclass(frozen=True)
class Baseline:
    """Another way to compute the same result, with its exact text."""

    text: str
    bind: Call
    settings: Callable[[], AbstractContextManager[None]] = nullcontext
    """Settings of torch while the baseline runs."""


def cublas(source: SpecFile) -> Baseline:
    """Return cuBLAS as torch calls it, with the algorithm that it chooses by default.

    The call computes the part of the epilogue that its arguments can express: alpha, beta and C (``addmm``),
    scales and a bias (``_scaled_mm``). Each remaining operation is a kernel of its own. If features of the
    matmul have calls of their own, the last one is taken.

    Raises GemmgenError (``no-baseline``) if torch has no call for the dtypes and formats.
    """
    problem = source.problem
    heads = (side.head(fast_accum=source.promote_k is None) for side in reversed(sides_of(problem)))
    head = next(filter(None, heads), None) or head_of(source)
    rest = tuple(steps(problem, head))
    words, settings = _settings(problem) if head.operands is None else (head.operands, nullcontext)
    text = ", then ".join((f"{head.text}, {words}", *(step.text for step in rest)))
    return Baseline(f"{head.by}: {text}", partial(_bind, head, rest), settings)


def _bind(head: Head, rest: tuple[TorchStep, ...], inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
    """Bind the matmul and what follows it to the tensors of a call."""
    first = head.bind(inputs, d)
    operations = tuple(step.bind(inputs) for step in rest)
    if not operations:
        return first

    def call() -> Tensor:
        result = first()
        for operation in operations:
            result = operation(result)
        return result

    return call


def _settings(problem: Matmul) -> tuple[str, Callable[[], AbstractContextManager[None]]]:
    """Return the operands' type and torch's settings for it in words, and the settings to be made."""
    a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
    matmul: Any = torch.backends.cuda.matmul
    if a == "tf32":
        return "tf32, allow_tf32 True", partial(_set, "allow_tf32")
    if a == "fp16" and problem.accumulator.name == "fp16":
        return "fp16, allow_fp16_accumulation True", partial(_set, "allow_fp16_accumulation")
    if a in ("bf16", "fp16") and d != "fp32":
        reduced = getattr(matmul, f"allow_{a}_reduced_precision_reduction")
        return f"{a}, reduced-precision reduction {reduced}", nullcontext
    return (a if a == b else f"{a} and {b}"), nullcontext


@contextmanager
def _set(name: str) -> Generator[None]:
    """Set a flag of ``torch.backends.cuda.matmul`` in the context, and restore it."""
    matmul: Any = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, True)
    try:
        yield
    finally:
        setattr(matmul, name, before)


# --- the operations after the matmul, a kernel each


@dataclass(frozen=True)
class TorchStep:
    """One operation on the intermediate result, with its text."""

    text: str
    bind: Callable[[Inputs], Callable[[Tensor], Tensor]]
    """Binds the operation to inputs; the operation may change its argument."""


def steps(problem: Matmul, head: Head) -> Iterator[TorchStep]:
    """Yield the steps that remain after a product, and the conversion to D's type."""
    d, epilogue = problem.d.name, problem.epilogue
    held, left = head.product, epilogue.steps[head.taken :]
    if left and held == "int32":
        held = d if d in ("bf16", "fp32") else "fp32"  # fp16 ends at 65,504
        yield _conversion(held)
    if left and not epilogue.is_chain:
        yield _expression(problem)
    else:
        for step in left:
            yield _step(step, problem, head.vectors)
    if TORCH_DTYPES[held] != TORCH_DTYPES[d]:
        yield _conversion(d)


def _expression(problem: Matmul) -> TorchStep:
    """Return a whole epilogue as one step; each of its operations is a kernel of torch.

    The product has the sums of several accumulators, as B has their columns.
    """
    epilogue = problem.epilogue

    def bind(inputs: Inputs) -> Callable[[Tensor], Tensor]:
        return lambda d: evaluated_d(epilogue, sums_of(d, epilogue), inputs.extras)

    texts = [_torch_text(value, epilogue, stacked=_stacks_d(problem)) for value in epilogue.values]
    if len(texts) == 1:
        return TorchStep(f"{_parted(problem)}d = {texts[0]}", bind)
    joined = f"torch.{'stack' if problem.interleaved else 'cat'}(({', '.join(texts)}), -1)"
    return TorchStep(f"unfused: d = {joined}{'.flatten(-2)' * problem.interleaved}", bind)


def _stacks_d(problem: Matmul) -> bool:
    """Return True if C and D have a dimension before their rows."""
    return len(problem.extents_of_d(1, 1)) > 2


def _parted(problem: Matmul) -> str:
    """Return the text that takes the sums of several accumulators from the product d; empty for one."""
    if not problem.gated:
        return ""
    names = problem.epilogue.accumulators
    stacked = _stacks_d(problem)
    parts = f"d.chunk({len(names)}, {-1 if stacked else 1})"
    if problem.interleaved:
        rows = "..." if stacked else ":"
        parts = ", ".join(f"d[{rows}, {first}::{len(names)}]" for first in range(len(names)))
    return f"unfused: {', '.join(names)} = {parts}; "


def _part_of_vector(load: Load, epilogue: Epilogue) -> str:
    """Return the text of an accumulator's elements of a column operand."""
    number, count = epilogue.accumulators.index(load.accumulator), len(epilogue.accumulators)
    part = f"[{number}::{count}]" if epilogue.interleaved else f".chunk({count})[{number}]"
    return f"{load.tensor}{part}"


def _step(step: EpilogueStep, problem: Matmul, vectors: Vectors | None) -> TorchStep:
    """Return one step of a chain, in place if torch has a method for that."""
    call, value = step.call, step.operand
    if value is None:
        text = torch_call(call.op, "d", call.parameters)
        return TorchStep(text, lambda _: lambda x: activated(call.op, x, call.parameters))
    if call.op == TIMES:
        if isinstance(value, Number):
            factor = value.value
            return TorchStep(f"d.mul_({factor:g})", lambda _: lambda x: x.mul_(factor))
        text = f"d.mul_({_operand_text(value, problem, vectors)})"
        return TorchStep(text, lambda inputs: _multiplying(_bound_operand(value, problem, vectors, inputs)))
    factor, addend = 1.0, value
    match value:
        case EpilogueCall("times", (Number(number), other)):
            factor, addend = number, other
        case _:
            pass
    text = _with(f"d.add_({_operand_text(addend, problem, vectors)}", "alpha", factor)
    return TorchStep(text, lambda inputs: _adding(_bound_operand(addend, problem, vectors, inputs), factor))


@dataclass(frozen=True)
class _TorchSpelling(Spelling):
    """Spells values of an epilogue in torch; d is the intermediate result of one accumulator."""

    epilogue: Epilogue
    stacked: bool = False
    """True if C has a dimension for groups."""

    def accumulator(self, name: str) -> Spelled:
        return "d" if name == ACCUMULATOR else name, ATOM_RANK

    def load(self, load: Load) -> Spelled:
        if load.block:
            number, count = self.epilogue.c_blocks.index(load.block), len(self.epilogue.c_blocks)
            rows, axis = ("...", -1) if self.stacked else (":", 1)
            columns = f".chunk({count}, {axis})[{number}]"
            if self.epilogue.interleaved:
                columns = f"[{rows}, {number}::{count}]"
            return f"c{columns}", ATOM_RANK
        if load.accumulator:
            return _part_of_vector(load, self.epilogue), ATOM_RANK
        return f"{load.tensor}{'[:, None]' * (load.operand == 'row')}", ATOM_RANK

    def activation(self, call: EpilogueCall, argument: Spelled) -> Spelled:
        return torch_call(call.op, argument[0], call.parameters), ATOM_RANK


def _torch_text(value: Value, epilogue: Epilogue = PLAIN, *, stacked: bool = False) -> str:
    return fold(value, _TorchSpelling(epilogue, stacked))[0]


def _operand(value: Value, x: Tensor, inputs: Inputs) -> Tensor:
    """Return the other operand of a step: a tensor as it is passed, or an expression in the type of x."""
    if isinstance(value, Load):
        return loaded(value, inputs.extras)
    return evaluated_operand(value, x, inputs.extras)


def _operand_text(value: Value, problem: Matmul, vectors: Vectors | None) -> str:
    """Return the text of the other operand of a step."""
    if vectors and isinstance(value, Load) and value.tensor in problem.vectors:
        return vectors.text(value)
    return _torch_text(value)


def _bound_operand(
    value: Value, problem: Matmul, vectors: Vectors | None, inputs: Inputs
) -> Callable[[Tensor], Tensor]:
    """Return a function from an intermediate result to the other operand of a step."""
    if vectors and isinstance(value, Load) and value.tensor in problem.vectors:
        vector = vectors.bind(value, inputs)
        return lambda _: vector()
    return lambda x: _operand(value, x, inputs)


def _multiplying(operand_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: x.mul_(operand_of(x))


def _adding(operand_of: Callable[[Tensor], Tensor], factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.add_(operand_of(x), alpha=factor)


def _conversion(dtype: DType) -> TorchStep:
    torch_dtype = TORCH_DTYPES[dtype]
    clamp = "clamp to its range and " if dtype in FP8 else ""
    return TorchStep(
        f"{clamp}d.to({torch_dtype})", lambda _: lambda x: saturated(x, torch_dtype).to(torch_dtype)
    )


def _with(call: str, name: str, factor: float) -> str:
    """Close the text of a call, with this keyword unless its value is 1."""
    return f"{call}, {name}={factor:g})" if factor != 1 else f"{call})"
