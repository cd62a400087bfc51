"""Hints for users who write the words of other generators, libraries and GPUs in a spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from gemmgen.hardware import DTYPES
from gemmgen.hardware.elements import SCALE_FORMATS
from gemmgen.hardware.gpus import GPUS, targets_of
from gemmgen.problem import GroupKind
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec.diagnostics import UNSIGNED, Location, Node, did_you_mean, listing, shortened

STREAM_K = (
    "stream-K was tried and removed (benchmarks/tried_and_left.md): leave it out, or divide K by "
    "schedule.splits"
)
"""The answer to a word that means stream-K."""
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("batch", "batch_size", "batches"),
        "batches are groups: {kind: batched, count: …}; a batch that shares B is folded into M",
    ),
    **dict.fromkeys(
        ("num_groups", "experts", "num_experts"),
        "experts are groups of rows: groups: {kind: m_offsets, count: …}",
    ),
    **dict.fromkeys("mnk", "the sizes that a kernel is for are problem: {m: …, n: …, k: …}"),
    **{operand: f"it goes under operands, as {operand}: {{dtype: …}}" for operand in "abcd"},
    **dict.fromkeys(("dtype", "dtypes", "type"), "the types are operands.a.dtype, b.dtype and d.dtype"),
    **dict.fromkeys(
        ("a_dtype", "b_dtype", "c_dtype", "d_dtype"), "the types are operands.a.dtype, b.dtype and d.dtype"
    ),
    **dict.fromkeys(
        ("layout", "layouts", "major", "transpose", "trans_a", "trans_b"),
        "the contiguous dimension is operands.a.major and operands.b.major",
    ),
    **dict.fromkeys(("alpha", "beta", "ops", "subtile_n"), "it goes under epilogue"),
    **dict.fromkeys(
        ("bias", "activation", "relu", "gelu", "silu"),
        "operations after the product are a list, epilogue.ops",
    ),
    **dict.fromkeys(("stages", "num_stages"), "it is buffering.stages"),
    **dict.fromkeys(
        ("num_warps", "consumers", "num_consumers"), "the roles of warps are under warp_specialization"
    ),
    **dict.fromkeys(
        ("split_k", "splits"), "split-K is schedule.splits; kernels of groups and gates have none"
    ),
    **dict.fromkeys(("stream_k", "last_wave"), STREAM_K),
    **{f"block_{size}": f"it is tile.{size}" for size in "mnk"},
    **{f"block_size_{size}": f"it is tile.{size}" for size in "mnk"},
    **{f"tile_{size}": f"it is tile.{size}" for size in "mnk"},
    **dict.fromkeys(("shape", "shapes"), "they are check.shapes and bench.shapes"),
    **dict.fromkeys(("gpu", "arch", "device"), "it is target"),
    **dict.fromkeys(
        ("autograd", "grad", "gradients", "requires_grad", "training"), "backward: true generates gradients"
    ),
    **dict.fromkeys(("name", "description"), "it is title, and the module is named by the file"),
}
"""The field that has a setting which other generators and libraries have at the top level."""
COUNTS_OF_GROUPS = (
    "num_groups",
    "g",
    "groups",
    "experts",
    "num_experts",
    "batch",
    "batch_size",
    "size",
    "number",
)
IN_SECTIONS: dict[tuple[str, ...], dict[str, str]] = {
    ("groups",): {
        **dict.fromkeys(COUNTS_OF_GROUPS, "it is groups.count"),
        **dict.fromkeys(("type", "layout", "mode", "of"), "it is groups.kind"),
        **dict.fromkeys(("gather", "gather_indices", "sorted_token_ids", "a_indices"), "it is groups.a_rows"),
        **dict.fromkeys(("scatter", "scatter_indices", "d_indices"), "it is groups.d_rows"),
        **dict.fromkeys(("sizes", "group_sizes", "m_sizes"), "expected sizes are groups.shares"),
    },
    ("epilogue",): {
        **dict.fromkeys(
            ("gate", "glu", "gated", "swiglu", "activation"),
            "a gate is two accumulators: epilogue.accumulators: [gate, up] with epilogue.d: silu(gate) * up; "
            "an activation of one is an item of epilogue.ops",
        ),
        **dict.fromkeys(
            ("bias", "gelu", *(name for name, row in OPERATIONS.items() if not row.derivative_of)),
            "it is an item of the list epilogue.ops",
        ),
        **dict.fromkeys(("expression", "formula"), "it is epilogue.d"),
        **dict.fromkeys(("preact", "preactivation", "store_preact"), "sums beside D are epilogue.save"),
    },
    ("schedule",): {
        "split_k": "it is schedule.splits; kernels of groups and gates have none",
        **dict.fromkeys(("stream_k", "last_wave"), STREAM_K),
    },
}
"""The field that has a setting of other generators and libraries, by the section in which it was written."""
KIND_OF_GROUPS: dict[str, str] = {
    **dict.fromkeys(
        (
            "grouped",
            "contiguous",
            "m_contiguous",
            "m_grouped_contiguous",
            "ragged",
            "moe",
            "experts",
            "offsets",
        ),
        "m_offsets",
    ),
    **dict.fromkeys(("masked", "m_grouped_masked", "padded"), "m_masked"),
    **dict.fromkeys(("batch", "bmm", "strided", "strided_batched"), "batched"),
    **dict.fromkeys(("k_contiguous", "k_grouped", "k_grouped_contiguous", "ragged_k", "wgrad"), "k_offsets"),
}
"""The kind of groups that a word of another library means."""


def key_hint(
    key: str, keys: Sequence[str], node: Node | None, section: Location, fields: Sequence[str] = ()
) -> str:
    """Return a clause about an unknown key: the field that it stands for, or the closest key, or nothing.

    `keys` are the keys of its section, which is the whole spec if `section` is empty; `node` is the key's
    value, and `fields` has the fields of this key in other sections.
    """
    name, colon, value = key.partition(":")
    if colon and name in keys and value and node and node.value is None:
        return f"write a space after the colon: {name}: {shortened(value)}"
    elsewhere = IN_SECTIONS.get(tuple(map(str, section)), {}) if section else ELSEWHERE
    if place := elsewhere.get(key.lower().replace("-", "_")):
        return place
    if len(keys) == 1:
        return f"it is {keys[0]}"
    if len(fields) == 1:
        return f"it is {fields[0]}"
    return did_you_mean(key, keys).removeprefix("; ")


# --- words in place of a choice


def choice_hint(word: str, location: Location, choices: Sequence[str]) -> str:
    """Return the end of a message about a word that is none of its field's choices; nothing if none is known.

    A hint never offers other mathematics: words that are spelled alike can mean different operations.
    """
    name = re.sub("[- ]", "_", word.lower()).removeprefix("torch.")
    match location:
        case ("target",):
            return _target_hint(name)
        case ("operands", operand, "major"):
            return _order_hint(name, str(operand))
        case ("operands", operand, "dtype"):
            return _scale_format_hint(name, str(operand)) or _dtype_hint(name, choices)
        case ("epilogue", "ops", *_):
            return _operation_hint(name)
        case ("schedule", "kind"):
            return _schedule_hint(name)
        case ("operands", _, "scale", "format"):
            return _vector_hint(name)
        case ("groups", "kind") if meant := KIND_OF_GROUPS.get(name):
            return f"; that is {meant}"
        case _:
            return ""


OTHER_GPUS: dict[str, int] = {
    **dict.fromkeys(("v100", "volta"), 70),
    **dict.fromkeys(("t4", "turing"), 75),
    **dict.fromkeys(("a100", "a30", "a800", "ampere"), 80),
    **dict.fromkeys(("a10", "a10g", "a40", "a6000", "rtx3090", "rtx_3090"), 86),
    **dict.fromkeys(("l4", "l40", "l40s", "rtx4090", "rtx_4090", "ada"), 89),
    **dict.fromkeys(("rtx5090", "rtx_5090", "rtx_pro_6000"), 120),
}
"""GPUs that no kernel is generated for, with their compute capability, major * 10 + minor."""


def _target_hint(name: str) -> str:
    """Return which targets an architecture's name stands for, or why a GPU is none."""
    number = re.fullmatch(r"(?:sm|compute)?_?(\d{2,3})[af]?", name)
    capability = int(number[1]) if number else OTHER_GPUS.get(name.removeprefix("nvidia_"))
    generations = {row.architecture.generation.lower(): row.architecture for row in GPUS.values()}
    if name in generations:
        capability = generations[name].compute_capability
    if capability is None:
        return ""
    if targets := targets_of(capability):
        return f"; did you mean {listing(targets, 'or')}?"
    instructions = listing(sorted({row.architecture.mma for row in GPUS.values()}, reverse=True), "nor")
    return f"; sm_{capability} has neither {instructions}, which the kernels are made of"


ROW_MAJOR = ("row", "row_major", "rowmajor", "r")
COLUMN_MAJOR = ("col", "column", "col_major", "column_major", "colmajor", "c")


def _order_hint(name: str, operand: str) -> str:
    """Return which dimension is contiguous in an operand whose order is given in the words of BLAS.

    A [M, K] in row-major order is K-major, B [K, N] is K-major in column-major order.
    """
    rows = "k" if operand == "a" else "mn"
    extents = "[M, K]" if operand == "a" else "[K, N]"
    for words, order, major in (
        (ROW_MAJOR, "row", rows),
        (COLUMN_MAJOR, "column", "mn" if rows == "k" else "k"),
    ):
        if name in words:
            return f"; of {order}-major {operand.upper()} {extents} that is {major}"
    return ""


NUMBERS = re.compile(r"(u?int|i|u|fp|f|float|e\dm)\d+\w*|nf4|mxfp\d|nvfp4|double|bool|complex\w*")
"""Names of types of numbers."""


def _scale_format_hint(name: str, operand: str) -> str:
    """Return that a word in place of an operand's type is a format of scales, and what to write for it."""
    if name not in SCALE_FORMATS or operand not in SCALE_FORMATS[name].operands:
        return ""
    meant = SCALE_FORMATS[name]
    alike = [
        f"{{format: {each.name}}} on {' or '.join(each.generations(operand))}"
        for each in SCALE_FORMATS.values()
        if (each.elements, each.vector, each.dtype) == (meant.elements, meant.vector, meant.dtype)
    ]
    return f"; {name} is a format of scales: dtype: {meant.elements[0]}, scale: {' or '.join(alike)}"


VECTOR = re.compile(r"(\w+_1x)(\d+)")
"""Names of formats with the elements of K that share a scale."""


def _vector_hint(name: str) -> str:
    """Return the format for blocks of a number of K that no format has; an empty string for other names.

    The scale of a larger block is repeated for each smaller block in it. No format holds the scales of
    blocks that are smaller than its own.
    """
    found = VECTOR.fullmatch(name)
    kind, vector = (found[1], int(found[2])) if found else ("", 0)
    vectors = sorted(row.vector for row in SCALE_FORMATS.values() if f"{kind}{row.vector}" == row.name)
    if not vectors or vector in vectors:
        return ""
    for each in reversed(vectors):
        if vector and vector % each == 0:
            same = f"the scale of {vector} elements of K is repeated for {vector // each} blocks"
            return f"; did you mean {kind}{each}? If so, {same}"
    blocks = listing(list(map(str, vectors)), "or")
    return f"; scales that are called {kind}… are for blocks of {blocks} elements of K"


def _dtype_hint(name: str, choices: Sequence[str]) -> str:
    """Return that a type of numbers is not supported here: one that is spelled alike is another type."""
    known = {word for choice in choices for word in (choice, *DTYPES[choice].also)}
    if name in known or (name in UNSIGNED and "int8" in choices):
        return ""
    if name in DTYPES:
        return f"; {name} is a type of other operands only"
    return f"; {name} is not supported" if NUMBERS.fullmatch(name) else ""


GATES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("swiglu", "silu_and_mul"), ("silu",)),
    **dict.fromkeys(("geglu", "gelu_and_mul"), ("gelu_erf", "gelu_tanh")),
    "reglu": ("relu",),
}
"""Names of gated activations, with the activations of the gate that they may mean."""


def gate_hint(name: str, accumulators: Sequence[str] = ()) -> str:
    """Return the end of a message about a gated activation, which is an expression; nothing for other names.

    `accumulators` are the names of the sums if a spec has two already.
    """
    if name not in GATES:
        return ""
    gate, up = accumulators if len(accumulators) == 2 else ("gate", "up")
    written = listing([f"{activation}({gate}) * {up}" for activation in GATES[name]], "or")
    if len(accumulators) == 2:
        return f"; write {written}"
    return f"; it is epilogue.accumulators: [gate, up] with epilogue.d: {written}"


def _operation_hint(name: str) -> str:
    """Return what to do without an operation that there is not."""
    if hint := gate_hint(name):
        return hint
    if name in ("sigmoid", "tanh", "relu2", "elu", "selu", "softplus", "mish", "hardswish"):
        return "; an activation is added by a row and a template, as docs/extending.md says"
    return ""


def _schedule_hint(name: str) -> str:
    """Return the field that divides K, which is no kind of schedule."""
    if name in ("stream_k", "streamk"):
        return f"; {STREAM_K}"
    return "; split-K is schedule.splits" if name in ("split_k", "splitk") else ""


# --- a word or a number in place of a section


def groups_hint(found: bool | int | str) -> str:
    """Return the end of a message about a value in place of the section of groups."""
    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
        return f"; groups of rows of one A are {{kind: m_offsets, count: {found}}}"
    kind = KIND_OF_GROUPS.get(found, found) if isinstance(found, str) else "m_offsets"
    return f"; write {{kind: {kind}, count: …}}" if kind in get_args(GroupKind) else ""


def scale_hint(word: str) -> str:
    """Return the end of a message about a word in place of the section of scales, which is no format."""
    if word.lower() in ("row", "per_row", "rowwise", "token", "per_token", "tensor", "per_tensor", "channel"):
        return (
            "; a scale for each row, column or tensor multiplies sums: row_scale, column_scale or "
            "tensor_scale in epilogue.ops; scales of D that a kernel computes are for blocks of a row"
        )
    return ""
