"""The statements that compute an epilogue's expression, one a step, in any language that spells values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmgen.problem.epilogue import (
    ATOM_RANK,
    PLUS,
    TIMES,
    Call,
    Epilogue,
    Load,
    Number,
    Spelled,
    Spelling,
    Value,
    fold,
    is_term,
    loads_of,
)
from gemmgen.problem.operations import OPERATIONS

SIGNS = {TIMES: "*", PLUS: "+"}


@dataclass(frozen=True)
class Statement:
    """An assignment of one step."""

    variable: str
    operator: str
    """``=``, or an operator that changes the variable."""
    value: str
    loads: tuple[Load, ...]
    """The operands that no statement before it has read."""
    call: Call
    """The step."""

    def __str__(self) -> str:
        return f"{self.variable} {self.operator} {self.value}"


def statements(epilogue: Epilogue, spelling: Spelling, variable: str) -> tuple[Statement, ...]:
    """Return the statements of an epilogue: one accumulator's sums are in a variable, several in their own.

    A value is in the variable of an argument that is not needed any more, or in a new one; the last value
    is in the variable that is given. Of several outputs, each keeps its variable. A loaded operand, and a
    multiple of it, stands at its use.
    """
    return tuple(_statements(epilogue, spelling, variable))


def results(epilogue: Epilogue, made: tuple[Statement, ...], variable: str) -> tuple[str, ...]:
    """Return the variables that hold the outputs after the statements of an epilogue with one accumulator."""
    variables: dict[Value, str] = {each.call: each.variable for each in made}
    return tuple(variables.get(value, variable) for value in epilogue.values)


def _statements(epilogue: Epilogue, spelling: Spelling, variable: str) -> Iterator[Statement]:
    calls = [node for node in epilogue.nodes if isinstance(node, Call) and not is_term(node)]
    last_uses = {argument: call for call in calls for argument in call.args}
    several = len(epilogue.accumulators) > 1
    spelled: dict[Value, Spelled] = {
        sums: spelling.accumulator(name) if several else (variable, ATOM_RANK)
        for name, sums in zip(epilogue.accumulators, epilogue.sums, strict=True)
    }
    outputs = epilogue.values
    only = outputs[0] if len(outputs) == 1 else None
    names, read = [variable], set[Load]()
    for call in calls:
        held = [each for each in call.args if each in spelled]
        free = [spelled[each][0] for each in held if last_uses[each] == call and each not in outputs]
        if call == only or variable in free:
            target = variable
        elif free:
            target = free[0]
        else:
            names.append(f"{variable}_{len(names) + 1}")
            target = names[-1]
        terms = (each for each in call.args if each not in held)
        loads = dict.fromkeys(load for term in terms for load in loads_of(term))
        operator, text = _assigned(call, target, spelling, spelled)
        yield Statement(target, operator, text, tuple(load for load in loads if load not in read), call)
        read.update(loads)
        spelled[call] = (target, ATOM_RANK)


def _assigned(
    call: Call, target: str, spelling: Spelling, spelled: Mapping[Value, Spelled]
) -> tuple[str, str]:
    """Return the operator and the value of an assignment, which changes the target where one operator can."""
    known = dict(spelled)
    whole, _ = fold(call, spelling, known)
    if call.op in OPERATIONS or call.args[0] == Number(-1.0):
        return "=", whole
    changed = next((each for each in call.args if each in spelled and spelled[each][0] == target), None)
    if changed is None:
        return "=", whole
    left, right = call.args
    other = left if right is changed else right
    if isinstance(other, Number):
        return f"{SIGNS[call.op]}=", spelling.stated(call)[0]
    match call.op, other:
        case "plus", Call("times", (Number(-1.0), Load() as subtracted)):
            return "-=", known[subtracted][0]
        case _:
            return f"{SIGNS[call.op]}=", known[other][0]
