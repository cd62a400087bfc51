"""export of kernels of groups: launchers in C that describe D as boxes of rows, with a driver that only logs.

A call has the ends of groups as the address of int32 numbers on the GPU; the launcher never reads them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_driver import assert_compiles, assert_launched, assert_refused, called, exported
from modules import GROUPED_SPECS, made, spec_file

from gemmgen.build import export
from gemmgen.errors import GemmgenError


def is_exported(spec: Path) -> bool:
    """Return True if a launcher in C describes the matrices of a spec of groups."""
    problem = made(spec).plan.problem
    groups = problem.groups
    assert groups is not None
    has_scales = problem.scales_sums or problem.d_scale  # which tests/test_blockwise_export.py has
    refused = problem.c or groups.row_indices or groups.broadcast or has_scales or problem.saves
    return not refused


EXPORTED = sorted(spec.stem for spec in GROUPED_SPECS if is_exported(spec))
REFUSED = ("h100_bf16_gather", "h100_bf16_scatter", "h100_bf16_broadcast_a", "h100_bf16_wgrad_accumulated")
OFFSETS, FEW, MASKED = "h100_bf16_grouped", "h100_bf16_grouped_rows8", "h100_bf16_masked_weighted"
KINDS = (OFFSETS, FEW, MASKED, "h100_bf16_batched", "h100_bf16_batched_nn", "h100_bf16_wgrad")


@pytest.mark.parametrize("stem", REFUSED)
def test_other_matrices_of_groups_are_refused_by_name(stem: str, tmp_path: Path) -> None:
    with pytest.raises(GemmgenError) as refused:
        export(spec_file(stem), tmp_path)
    assert {found.code for found in refused.value.diagnostics} == {"export-groups"}


@pytest.mark.parametrize("stem", EXPORTED)
def test_a_compiler_takes_every_launcher_of_groups(stem: str, tmp_path: Path) -> None:
    assert_compiles(stem, tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("stem", KINDS)
def test_a_launcher_passes_what_the_compiled_kernel_of_groups_takes(stem: str) -> None:
    """`export` compares parameters, boxes and swizzles with the compiler's, and raises if one differs."""
    assert (exported(stem) / f"{stem}.cubin").read_bytes().startswith(b"\x7fELF")


def test_a_launcher_describes_the_rows_of_groups_as_boxes(tmp_path: Path) -> None:
    # 3 groups of 16 columns are 48 rows of B. D is boxes of 64 rows, each one row after the one before it,
    # and the first begins 64 rows of 48 bytes ahead. One tile of each group may be not full: 3 rows of tiles.
    arguments = (
        ".m = 20, .n = 16, .k = 24, .groups = 3, .a = {1024, 32}, .b = {2048, 32}, .offs = 64, "
        ".d = {65536, 24}"
    )
    found = called(OFFSETS, arguments, tmp_path, parameters="mmpbpp")
    assert (found.returncode, found.said) == (0, ["m = right.m: 0 "])
    *maps, launch, a, b, offsets, d, first_scratch, second_scratch = found.launch
    assert maps == [
        "cuTensorMapEncodeTiled type 9 at 1024 extents 20x24 stride 64 box 64x64 swizzle 3 L2 2 plain 1",
        "cuTensorMapEncodeTiled type 9 at 2048 extents 48x24 stride 64 box 256x64 swizzle 3 L2 2 plain 1",
        (
            f"cuTensorMapEncodeTiled type 9 at {65536 - 64 * 48} extents 64x16 stride 48 box 64x64 swizzle 3 "
            "L2 2 plain 1 boxes 21 stride 48 box 1"
        ),
    ]
    assert launch.startswith("cuLaunchKernelEx 32 grid 3x1x1 block 384x1x1")
    assert (a, b) == ("  matrix 20x24 strides 32 1 small 1", "  matrix 48x24 strides 32 1 small 1")
    assert offsets == "  address 64"
    assert d == "  boxes 21x64x16 strides 24 24 1 small 1"
    assert {first_scratch, second_scratch} == {"  address 0"}


@pytest.mark.parametrize(
    ("stem", "parameters", "arguments", "expected"),
    [
        # Masked: the rows of each group, then the vectors, by their addresses; D has 3 x 256 rows.
        (
            MASKED,
            "mmpppb",
            (
                ".a = {256, 128}, .b = {512, 128}, .column_bias = 1024, .row_scale = 2048, .rows = 4, "
                ".d = {1 << 20, 512}"
            ),
            [
                "  matrix 768x",
                "  matrix 1536x",
                "  address 1024",
                "  address 2048",
                "  address 4",
                "  boxes 769x",
            ],
        ),
        # Batches of an N-contiguous B: its descriptor has a dimension for groups.
        (
            "h100_bf16_batched_nn",
            "mbb",
            ".a = {256, 128}, .b = {512, 512}, .d = {1 << 20, 512}",
            ["  boxes 3x128x", "  boxes 769x"],
        ),
        # K of groups begins at any row: A and B are overlapping boxes of the rows of a K step.
        (
            "h100_bf16_wgrad",
            "bbpb",
            ".a = {256, 256}, .b = {512, 512}, .offs = 4, .d = {1 << 20, 512}",
            ["  boxes 128x64x256 strides", "  boxes 128x64x512 strides", "  address 4"],
        ),
    ],
)
def test_a_launcher_of_groups_asks_for_what_the_kernel_needs(
    stem: str, parameters: str, arguments: str, expected: list[str], tmp_path: Path
) -> None:
    shape = ".m = 256, .n = 512, .k = 128, .groups = 3"
    assert_launched(called(stem, f"{shape}, {arguments}", tmp_path, parameters=parameters), expected)


def test_wrong_groups_are_refused_by_their_names(tmp_path: Path) -> None:
    arguments = (
        ".m = 4, .n = 16, .k = 24, .groups = 3, .a = {256, 24}, .b = {256, 24}, .offs = 4, .d = {256, 16}"
    )
    assert_refused(
        (OFFSETS, arguments, tmp_path),
        {
            "groups = 0": (6, "groups"),
            "groups = 33": (6, "groups"),
            "groups = 3": (0, ""),
            "n = 2147483392": (6, "b"),
            "k = 0": (6, "k"),
            "offs = 0": (7, "offs"),
            "offs = 2": (7, "offs"),
            "m = 0": (0, ""),
            "d.row_stride = 8": (8, "d"),
        },
    )
