"""The content of table.json: all that differs between libraries, as gemmgen_table.py reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gemmgen.hardware.gpus import HOPPER_PRODUCTS
from gemmgen.kinds import MOST_EXTENT
from gemmgen.library.assemble import Library
from gemmgen.library.manifest import LIBRARY_FORMAT
from gemmgen.library.selection import predictable
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.axes import axes_of, is_transposed
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import traffic_of
from gemmgen.plan.timing import Stream, Tiles
from gemmgen.plan.wgmma.cost import card_of, row_of
from gemmgen.problem.groups import Groups
from gemmgen.render.arguments import ArgumentTable, passed_as


def expects_rows(plan: Kernel) -> bool:
    """Return True if a caller may say how many rows a group has in the mean: no shape says it."""
    groups = plan.problem.groups
    return groups is not None and groups.of == "m_masked"


def table_of(library: Library) -> dict[str, Any]:
    """Return the members of the table of a library, for JSON."""
    return {
        "format": LIBRARY_FORMAT,
        "gpu": library.gpu,
        "baseline": library.baseline,
        "kernels": [member.stem for member in library.members],
        "measured": {stem: [list(row) for row in rows] for stem, rows in library.measured.items()},
        "call": _call(library),
        "rule": _rule(library),
    }


def _call(library: Library) -> dict[str, Any]:
    """Return what all kernels take and compute, and which of them add up sums in any order."""
    plan = library.members[0].product.plan
    problem, wrapper = plan.problem, ArgumentTable(plan)
    scales = problem.a.scale, problem.b.scale
    return {
        "arguments": {passed_as(name): _argument(wrapper, name) for name in (*wrapper.inputs, "d")},
        "epilogue": list(wrapper.steps),
        "groups": _groups(problem.groups) if problem.groups else None,
        "expects_rows": expects_rows(plan),
        "most_groups": plan.group_slots or MOST_EXTENT,
        "max_extent": MOST_EXTENT,
        "n_multiple": TensorAccess(problem).n_multiple,
        "copies": problem.copies_misaligned,
        "scale_vector": scales[0].vector if scales[0] else 0,
        "scale_columns": scales[1].format.rows if scales[1] else 0,
        "unordered": [each.stem for each in library.members if not each.product.plan.deterministic],
    }


def _argument(wrapper: ArgumentTable, name: str) -> dict[str, Any]:
    """Return an argument: its type in torch, the names of its axes, and whether it is passed transposed."""
    argument, problem = wrapper.plan.argument(name), wrapper.plan.problem
    return {
        "dtype": argument.dtype.torch.removeprefix("torch."),
        "axes": list(axes_of(problem, argument)),
        "transposed": is_transposed(problem, argument),
    }


def _groups(groups: Groups) -> dict[str, Any]:
    return {"of": groups.of, "count": groups.count, "broadcast": groups.broadcast}


def _rule(library: Library) -> dict[str, Any]:
    """Return what predicts times: rates of GPUs, bits of elements, and a row of numbers for each kernel."""
    plan = library.members[0].product.plan
    own = card_of(plan.gpu)._asdict()
    products = [
        {
            "device": product.device,
            "memory_gb": product.memory_gb,
            "card": {rate: value for rate, value in card_of(product)._asdict().items() if value != own[rate]},
        }
        for product in HOPPER_PRODUCTS
    ]
    rows = {
        member.stem: row_of(kernel)
        for member in library.members
        for kernel in predictable(member.stem, [member.product.plan])
    }
    return {
        "card": own,
        "products": products,
        "traffic": traffic_of(plan.problem)._asdict(),
        "rows": {kind.__name__: _rows(kind, rows.items()) for kind in (Tiles, Stream)},
    }


def _rows(kind: type[Tiles | Stream], rows: Iterable[tuple[str, NamedTuple]]) -> dict[str, Any]:
    """Return the rows of one kind of kernels, with the names of their numbers once."""
    return {
        "fields": list(kind._fields),
        "kernels": {stem: list(row) for stem, row in rows if isinstance(row, kind)},
    }
