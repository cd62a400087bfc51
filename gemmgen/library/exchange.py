"""Libraries for other programs: tables of tiles for vLLM."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware.gpus import is_power_of_two
from gemmgen.library.assemble import Library
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Matmul
from gemmgen.product import write_files

CONFIG_DTYPES: Final = {"e4m3": ",dtype=fp8_w8a8", "e5m2": ",dtype=fp8_w8a8", "int8": ",dtype=int8_w8a8"}
"""Suffix in the names of such tables for operands below 16 bits."""


def configs_of(library: Library) -> tuple[dict[str, str], int, int]:
    """Return the tuned shapes as tables of tiles by their file names, in the format of vLLM.

    Each table is of one N and K, and has by M the tile, warps and stages for a Triton kernel. The numbers
    count the shapes that are in the tables, and the shapes that are not: a Triton kernel cannot have fewer
    than 16 rows, or a number of columns that is not a power of two.
    """
    plans = {member.stem: member.product.plan for member in library.members}
    # A GPU's name may have a slash, which a file's name cannot.
    gpu = re.sub(r"[\s/]", "_", library.gpu or "")
    kind = _kind_of_config(library.members[0].product.plan.problem)
    tables: dict[str, dict[int, dict[str, int]]] = {}
    for (m, n, k), stem in library.fastest.items():
        if config := _config(plans[stem]):
            tables.setdefault(f"N={n},K={k},device_name={gpu}{kind}.json", {})[m] = config
    files = {name: json.dumps(found, indent=4) + "\n" for name, found in tables.items()}
    count = sum(map(len, tables.values()))
    return files, count, len(library.fastest) - count


def _kind_of_config(problem: Matmul) -> str:
    """Return the suffix of a table's name: the element type, and N and K of the blocks with a scale of B."""
    dtype = CONFIG_DTYPES.get(problem.a.dtype.name, "")
    scale = problem.b.scale
    return f"{dtype},block_shape=[{scale.format.rows},{scale.vector}]" if scale else dtype


def _config(plan: Kernel) -> dict[str, int] | None:
    """Return the tile in the format of Triton's kernels; None if they cannot have it."""
    tile = plan.cta_tile_m, plan.cta_tile_n
    if not (
        isinstance(plan, WgmmaKernel) and all(is_power_of_two(extent) for extent in tile) and min(tile) >= 16
    ):
        return None
    return {
        "BLOCK_SIZE_M": plan.cta_tile_m,
        "BLOCK_SIZE_N": plan.cta_tile_n,
        "BLOCK_SIZE_K": plan.cta_tile_k,
        "GROUP_SIZE_M": plan.width if plan.minor == "m" else 1,
        "num_warps": plan.consumer_warps * plan.row_shares,
        "num_stages": plan.stages,
    }


def write_configs(library: Library, directory: Path) -> str:
    """Write these tables into a directory; return a text about the written and the omitted shapes.

    Raises GemmgenError (``no-kernels``) if no tuned shape has such a tile, or if its kernels have groups or a
    gate: vLLM has another format for experts, and none for gates.
    """
    problem = library.members[0].product.plan.problem
    if problem.groups or problem.gated:
        message = "its kernels multiply groups, and these tables are for one A and one B"
        if problem.gated:
            message = "its kernels compute a gate, and these tables are for plain products"
        raise GemmgenError([Diagnostic(library.name, "no-kernels", message)])
    files, count, left_out = configs_of(library)
    if not files:
        message = "no tuned shape has a tile that a kernel of Triton can have"
        raise GemmgenError([Diagnostic(library.name, "no-kernels", message)])
    write_files({directory / name: text.encode() for name, text in files.items()})
    lacking = f"; {left_out} have tiles that no kernel of Triton can have" if left_out else ""
    return f"{len(files)} tables of {count} tuned shapes{lacking}"
