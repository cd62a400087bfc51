"""The spelling of generated Python: the constants of extents and layouts, and calls that fit a line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import Barrier, Extent, Measure, SharedBuffer

LINE_LENGTH = 110  # of pyproject.toml, section [tool.ruff]
MEASURES: dict[Measure, str] = {
    "stages": "STAGES",
    "epilogue_buffers": "EPILOGUE_BUFFERS",
    "consumers": "CONSUMERS",
    "accumulators": "ACCUMULATORS",
    "clc_responses": "CLC_RESPONSES",
    "tile_m": "PROGRAM_TILE_M",
    "tile_n": "PROGRAM_TILE_N",
    "product_n": "PRODUCT_TILE_N",
    "tile_k": "PROGRAM_TILE_K",
    "packed_tile_k": "PACKED_TILE_K",
    "consumer_tile_m": "CONSUMER_TILE_M",
    "part_n_0": "PART_N_0",
    "part_n_1": "PART_N_1",
    "part_n_2": "PART_N_2",
    "vector_n": "VECTOR_N",
    "subtile_n": "SUBTILE_N",
    "d_columns": "D_COLUMNS",
    "block_slots": "BLOCK_SLOTS",
    "saved_columns": "SAVED_COLUMNS",
    "saved_slots": "SAVED_SLOTS",
    "a_scale_blocks": "A_SCALE_BLOCKS",
    "b_scale_blocks": "B_SCALE_BLOCKS",
    "scale_blocks_k": "SCALE_BLOCKS_K",
    "step_blocks": "STEP_BLOCKS",
    "scale_rows": "SCALE_ROWS",
    "scale_k": "SCALE_K",
}
"""The constant that holds each measure."""
RING_INDICES: dict[Measure, str] = {
    "stages": "stage",
    "epilogue_buffers": "buffer",
    "consumers": "consumer",
    "accumulators": "slot",
    "clc_responses": "slot",
}
"""The loop variable over the slots of each kind of ring."""


def extent_name(extent: Extent) -> str:
    """Return the constant that holds an extent, or the number that the hardware fixes."""
    return MEASURES[extent.measure] if extent.measure else str(extent.size)


def layout_name(buffer: SharedBuffer, buffers: Sequence[SharedBuffer], *, boxed: bool = False) -> str:
    """Return the constant that holds a buffer's layout: parts of B that lie alike have one.

    If `boxed`, the layout has a dimension for groups.
    """
    whole = next(other for other in buffers if other.tensor == buffer.tensor)
    alike = whole if whole.swizzle_bytes == buffer.swizzle_bytes else buffer
    name = alike.operand.upper()
    return f"{name}_BOX_LAYOUT" if boxed else f"{name}_LAYOUT"


def argument_name(argument: Argument) -> str:
    """Return an argument's name in the kernel: of its descriptor, or of its address."""
    if argument.kind == "address":
        return f"{argument.tensor}_ptr"
    return f"{argument.name}_{'ptr' if argument.is_addressed else 'desc'}"


def arrivals_name(barrier: Barrier) -> str:
    """Return the constant that holds the arrivals of one CTA on a barrier, or their number."""
    return (
        {"consumers": "CONSUMERS", "roles": "ROLES"}[barrier.counts] if barrier.counts else str(barrier.count)
    )


def fit(head: str, items: Sequence[str], tail: str, *, indent: int = 0, margin: int | None = None) -> str:
    """Return ``head`` + comma-separated items + ``tail`` in lines as the project's formatter breaks them.

    ``head`` ends with the opening bracket and ``tail`` begins with the closing one. The text starts after
    `indent` columns that the caller has already written. An item may have lines of its own, which are
    indented by one level more than `indent`. Further lines are indented by `margin` columns, as many as
    `indent` if left out: none where a template indents the whole block.
    """
    margin = indent if margin is None else margin
    outer, inner = " " * margin, " " * (margin + 4)
    joined = ", ".join(items)
    if "\n" not in joined and indent + len(head + joined + tail) <= LINE_LENGTH:
        return head + joined + tail
    display = head[-1] in "[{" or head == "("  # of a list, dict or tuple: one item a line, once it is broken
    fits = "\n" not in joined and indent + 4 + len(joined) <= LINE_LENGTH
    if len(items) == 1 or (fits and not display):
        return f"{head}\n{inner}{joined}\n{outer}{tail}"
    lines = "".join(f"{inner}{item},\n" for item in items)
    return f"{head}\n{lines}{outer}{tail}"


def fill(text: str, first: str = "", further: str | None = None, width: int = LINE_LENGTH) -> str:
    """Return words of a template as the lines of a paragraph: the filter ``fill`` of templates.

    The first line begins with `first`, each further one with `further`, which is `first` if left out. White
    space between the words is alike: a template has its line breaks where its sentences read best.
    """
    lines = textwrap.wrap(
        " ".join(text.split()),
        width=width,
        initial_indent=first,
        subsequent_indent=first if further is None else further,
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines)


def fit_docstring(text: str, summary: str, indent: int) -> str:
    """Return the docstring of a summary and of further words: one line, or paragraphs if it has no room."""
    words = " ".join(text.split())
    line = f'"""{" ".join(summary.split())}; {words}"""'
    if indent + len(line) <= LINE_LENGTH:
        return line
    body = textwrap.fill(words[0].upper() + words[1:], width=104 - indent)
    return f'"""{" ".join(summary.split())}.\n\n{body}\n"""'


def fit_call(arguments: Sequence[str], function: str, indent: int = 0, margin: int | None = None) -> str:
    """Return a call in lines as the formatter breaks them (`fit`): the filter ``fit`` of templates."""
    return fit(f"{function}(", tuple(arguments), ")", indent=indent, margin=margin)


def fit_sum_call(terms: Sequence[str], function: str, first: str, indent: int) -> str:
    """Return a call of an argument and a sum (`fit_sum`): the filter ``fit_sum`` of templates."""
    return fit_sum(f"{function}(", first, tuple(terms), indent=indent)


def fit_sum(head: str, first: str, terms: Sequence[str], *, indent: int) -> str:
    """Return a call of two arguments, the second a sum, in lines as the formatter breaks them (`fit`)."""
    line = fit(head, (first, " + ".join(terms)), ")", indent=indent)
    if all(len(part) <= LINE_LENGTH for part in line.splitlines()):
        return line
    margin = " " * (indent + 4)
    return fit(head, (first, f"\n{margin}+ ".join(terms)), ")", indent=indent)
