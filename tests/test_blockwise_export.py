"""export of kernels with scales of blocks, of A and B or of D: launchers in C, with a driver that logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_driver import assert_compiles, assert_launched, assert_refused, called, exported, texts
from modules import EVERY_SPEC, made

from gemmgen.features.exporting import refusals

DENSE, EXPERTS, MASKED = (f"h100_e4m3_blockwise{name}" for name in ("", "_grouped", "_masked"))
COLUMNS, GROUPS_OF_K = "h100_e4m3_blockwise_wgrad", "h100_e4m3_blockwise_kgroups"
QUANTIZED, EXPERTS_QUANTIZED = "h100_e4m3_blockwise_quantized", "h100_bf16_masked_quantized"
SPLIT = "h100_e4m3_blockwise_split4"
BYTES, BYTES_OF_K, BYTES_OF_D = (f"h100_e4m3_ue8m0_{name}" for name in ("masked", "mx16", "quantized"))
KINDS = (
    *(DENSE, EXPERTS, MASKED, COLUMNS, GROUPS_OF_K, QUANTIZED, EXPERTS_QUANTIZED, SPLIT),
    *(BYTES, BYTES_OF_K, BYTES_OF_D),
)


def is_scaled(spec: Path) -> bool:
    """Return True for the spec of a Hopper kernel that has scales of blocks and a launcher."""
    problem = made(spec).source.problem
    return (problem.scales_sums or problem.d_scale is not None) and not [*refusals(made(spec).plan)]


EXPORTED = sorted(spec.stem for spec in EVERY_SPEC if spec.stem.startswith("h100_") and is_scaled(spec))


def test_all_kernels_with_scales_but_those_of_two_kernels_are_exported() -> None:
    scaled = (made(spec) for spec in EVERY_SPEC if spec.stem.startswith("h100_"))
    refused = {
        product.source.stem: {each.rule for each in refusals(product.plan)}
        for product in scaled
        if product.source.problem.scales_sums or product.source.problem.d_scale
    }
    assert {stem: codes for stem, codes in refused.items() if codes} == {
        "h100_e4m3_blockwise_parallel": {"export-reduction"}
    }
    assert len(EXPORTED) > 35


@pytest.mark.parametrize("stem", EXPORTED)
def test_a_compiler_takes_every_launcher_with_scales(stem: str, tmp_path: Path) -> None:
    assert_compiles(stem, tmp_path)


@pytest.mark.sample(4)
@pytest.mark.parametrize("stem", KINDS)
def test_a_launcher_passes_what_the_compiled_kernel_takes(stem: str) -> None:
    """`export` compares parameters, boxes and swizzles with the compiler's, and raises if one differs."""
    assert (exported(stem) / f"{stem}.cubin").read_bytes().startswith(b"\x7fELF")


def fields(stem: str) -> list[str]:
    """Return the members of a launcher's arguments that are scales."""
    lines = texts(stem)[f"{stem}.h"].splitlines()
    return [line.strip() for line in lines if re.search(r"\b[abd]_scale;", line)]


@pytest.mark.parametrize(
    ("stem", "number", "expected"),
    [
        (DENSE, 0, "gemmgen_matrix a_scale; ceil(K / 128) rows of M fp32"),
        (DENSE, 1, "CUdeviceptr b_scale; ceil(N / 128) rows of ceil(K / 128) fp32"),
        (EXPERTS, 0, "gemmgen_matrix a_scale; ceil(K / 128) rows of M fp32"),
        (EXPERTS, 1, "CUdeviceptr b_scale; G x ceil(N / 128) rows of ceil(K / 128) fp32"),
        (MASKED, 0, "gemmgen_matrix a_scale; G x ceil(K / 128) rows of M fp32"),
        (COLUMNS, 1, "gemmgen_matrix b_scale; ceil(K / 128) rows of N fp32"),
        ("h100_e4m3_blockwise_gated", 1, "CUdeviceptr b_scale; ceil(2N / 128) rows of ceil(K / 128) fp32"),
        (EXPERTS_QUANTIZED, 0, "CUdeviceptr d_scale; G x ceil(N / 128) rows of M fp32"),
        (BYTES, 1, "CUdeviceptr b_scale; G x ceil(N / 128) rows of ceil(K / 128) ue8m0"),
    ],
)
def test_a_header_says_how_scales_lie_in_memory(stem: str, number: int, expected: str) -> None:
    assert fields(stem)[number].replace("/* ", "").partition(":")[0] == expected


def test_a_launcher_describes_scales_as_the_kernel_reads_them(tmp_path: Path) -> None:
    arguments = (
        ".m = 37, .n = 272, .k = 400, .a = {1024, 416}, .b = {2048, 416}, .a_scale = {4096, 44}, "
        ".b_scale = 8192, .d = {16384, 280}"
    )
    found = called(DENSE, arguments, tmp_path, parameters="mmmpm")
    assert (found.returncode, found.said) == (0, ["m = right.m: 0 "])
    # 4 blocks of K with 37 scales each, in rows that lie 44 apart.
    assert found.launch[2] == (
        "cuTensorMapEncodeTiled type 7 at 4096 extents 4x37 stride 176 box 1x128 swizzle 0 L2 2 plain 1"
    )
    assert found.launch[-5:] == [
        "  matrix 37x400 strides 416 1 small 1",
        "  matrix 272x400 strides 416 1 small 1",
        "  matrix 4x37 strides 44 1 small 1",
        "  address 8192",
        "  matrix 37x272 strides 280 1 small 1",
    ]


@pytest.mark.parametrize(
    ("stem", "parameters", "arguments", "expected"),
    [
        (
            MASKED,
            "mmmppb",
            (
                ".m = 128, .n = 256, .k = 256, .groups = 3, .a = {256, 256}, .b = {512, 256}, "
                ".a_scale = {1024, 132}, .b_scale = 2048, .rows = 4, .d = {1 << 20, 256}"
            ),
            [
                "  matrix 384x256",
                "  matrix 6x128 strides 132",
                "  address 2048",
                "  address 4",
                "  boxes 385x",
            ],
        ),
        (
            GROUPS_OF_K,
            "mmmmpb",
            (
                ".m = 128, .n = 128, .k = 512, .groups = 3, .a = {256, 512}, .b = {512, 512}, "
                ".a_scale = {1024, 132}, .b_scale = {2048, 132}, .offs = 4, .d = {1 << 20, 128}"
            ),
            ["  matrix 4x128 strides 132", "  matrix 4x128 strides 132", "  address 4", "  boxes 385x"],
        ),
        (
            SPLIT,
            "mmmpmpp",
            (
                ".m = 16, .n = 64, .k = 2048, .a = {256, 2048}, .b = {512, 2048}, .a_scale = {1024, 20}, "
                ".b_scale = 2048, .d = {4096, 64}"
            ),
            [
                "  matrix 16x16 strides 20",
                "  address 2048",
                f"  address {(1 << 20) + 256}",
                f"  address {1 << 20}",
            ],
        ),
        (
            EXPERTS_QUANTIZED,
            "mmpbp",
            (
                ".m = 64, .n = 256, .k = 256, .groups = 3, .a = {256, 256}, .b = {512, 256}, .rows = 4, "
                ".d = {1 << 20, 256}, .d_scale = 2048"
            ),
            ["  address 4", "  boxes 193x", "  address 2048"],
        ),
        # UE8M0: scales are bytes, type 0, and rows of 37 of them begin at multiples of 16.
        (
            BYTES_OF_K,
            "mmmmm",
            (
                ".m = 37, .n = 64, .k = 256, .a = {256, 256}, .b = {512, 256}, .a_scale = {1024, 48}, "
                ".b_scale = {2048, 64}, .d = {4096, 64}"
            ),
            [
                "cuTensorMapEncodeTiled type 0 at 1024 extents 8x37 stride 48",
                "cuTensorMapEncodeTiled type 0 at 2048 extents 8x64 stride 64",
                "  matrix 8x37 strides 48",
            ],
        ),
    ],
)
def test_a_launcher_asks_for_what_the_kernel_needs(
    stem: str, parameters: str, arguments: str, expected: list[str], tmp_path: Path
) -> None:
    assert_launched(
        called(stem, arguments, tmp_path, workspace=stem == SPLIT, parameters=parameters), expected
    )


def test_wrong_scales_are_refused_by_their_names(tmp_path: Path) -> None:
    arguments = (
        ".m = 6, .n = 256, .k = 272, .a = {256, 272}, .b = {256, 272}, .a_scale = {256, 8}, .b_scale = 512, "
        ".d = {256, 256}, .d_scale = 1024"
    )
    assert_refused(
        (QUANTIZED, arguments, tmp_path),
        {
            "m = 6": (0, ""),
            "a_scale.address = 0": (7, "a_scale"),
            "a_scale.address = 260": (7, "a_scale"),
            "a_scale.row_stride = 4": (8, "a_scale"),
            "a_scale.row_stride = 9": (8, "a_scale"),
            "b_scale = 0": (7, "b_scale"),
            "b_scale = 516": (7, "b_scale"),
            "d_scale = 0": (7, "d_scale"),
            "n = 192": (6, "d"),
            "k = 0": (6, "k"),
        },
    )
