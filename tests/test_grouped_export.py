"""export of kernels of groups: launchers in C that describe D as boxes of rows, with a driver that only logs.

A call has the ends of groups as the address of int32 numbers on the GPU; the launcher never reads them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fake_driver import compiled_driver, export_and_compile, started
from modules import GROUPED_SPECS, made, spec_file
from programs import compiled_c

from gemmgen.build import export
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render import render_launcher
from gemmgen.render.launcher import Launcher
from gemmgen.triton_api import cuda_include

Run = Callable[..., subprocess.CompletedProcess[str]]


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


_exported: dict[str, Path] = {}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a libcuda.so.1 that writes down calls."""
    return compiled_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Run:
    """Run a program with that driver."""
    return partial(started, driver, tmp_path / "log.txt")


@pytest.fixture
def log(tmp_path: Path) -> Callable[[], list[str]]:
    """Return the lines that the driver has written."""
    return lambda: (tmp_path / "log.txt").read_text().splitlines()


@pytest.fixture
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export a committed spec and compile its test program, once; return the directory."""

    def build(stem: str) -> Path:
        if stem not in _exported:
            _exported[stem] = export_and_compile(stem, tmp_path_factory.mktemp(stem))
        return _exported[stem]

    return build


def texts(stem: str) -> dict[str, str]:
    """Return the files of a launcher without its cubin."""
    plan = made(spec_file(stem)).plan
    assert isinstance(plan, WgmmaKernel)
    launcher = Launcher(plan, stem, b"")
    return render_launcher(launcher, spec_name=f"{stem}.yaml", spec_sha256="0" * 64)


@pytest.mark.parametrize("stem", REFUSED)
def test_other_matrices_of_groups_are_refused_by_name(stem: str, tmp_path: Path) -> None:
    with pytest.raises(GemmgenError) as refused:
        export(spec_file(stem), tmp_path)
    assert {found.code for found in refused.value.diagnostics} == {"export-groups"}


@pytest.mark.parametrize("stem", EXPORTED)
def test_a_compiler_takes_every_launcher_of_groups(stem: str, tmp_path: Path) -> None:
    for name, text in texts(stem).items():
        assert not re.search(r"{[{%#]|[%#]}|\bNone\b|\bTrue\b|\bFalse\b|[ \t]$", text, re.MULTILINE), name
        assert "\n\n\n" not in text
        (tmp_path / name).write_text(text)
    for name in (f"{stem}.c", f"{stem}_test.c"):
        compiled_c("-fsyntax-only", tmp_path / name)


@pytest.mark.parametrize("stem", KINDS)
def test_a_launcher_passes_what_the_compiled_kernel_of_groups_takes(stem: str, tmp_path: Path) -> None:
    """`export` compares parameters, boxes and swizzles with the compiler's, and raises if one differs."""
    exported = export(spec_file(stem), tmp_path)
    assert (tmp_path / f"{stem}.cubin").read_bytes().startswith(b"\x7fELF")
    assert len(exported.files) == 5


def test_the_test_program_of_groups_finds_right_and_wrong_numbers(
    built: Callable[[str], Path], run: Run, log: Callable[[], list[str]]
) -> None:
    directory = built(OFFSETS)
    command = (directory / f"{OFFSETS}_test", directory / f"{OFFSETS}.cubin", 20, 16, 24)
    found = run(*command, multiply="1", parameters="mmpbpp")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[-1] == (
        f"{OFFSETS} 20x16x24: right, 0 of 640 elements wrong, 0 bytes beside D written"
    )
    lines = [line for line in log() if line.startswith(("cuTensorMap", "cuLaunch", "  "))][:9]
    # Rows of 24 elements lie 32 apart; 3 groups of 16 columns are 48 rows of B. D is boxes of rows, each one
    # row after the one before it. At most one tile of each group is not full: 3 rows of tiles.
    assert lines == [
        "cuTensorMapEncodeTiled type 9 extents 20x24 stride 64 box 64x64 swizzle 3 L2 2 plain 1",
        "cuTensorMapEncodeTiled type 9 extents 48x24 stride 64 box 256x64 swizzle 3 L2 2 plain 1",
        (
            "cuTensorMapEncodeTiled type 9 extents 64x16 stride 48 box 64x64 swizzle 3 L2 2 plain 1 boxes 21"
            " stride 48 box 1"
        ),
        lines[3],
        "  matrix 20x24 strides 32 1 small 1",
        "  matrix 48x24 strides 32 1 small 1",
        "  address given",
        "  boxes 21x64x16 strides 24 24 1 small 1",
        "  address none",
    ]
    assert lines[3].startswith("cuLaunchKernelEx 32 grid 3x1x1 block 384x1x1")
    found = run(*command, multiply="wrong", parameters="mmpbpp")
    assert found.returncode == 1
    assert f"{OFFSETS} 20x16x24: WRONG, 36 of 640 elements wrong" in found.stdout


@pytest.mark.parametrize(
    ("stem", "parameters", "grid", "expected"),
    [
        # Masked: the rows of each group, then the vectors, by their addresses; D has 3 x 256 rows.
        (MASKED, "mmpppb", "grid ", ["  matrix 768x", "  boxes 769x"]),
        # Batches of an N-contiguous B: its descriptor has a dimension for groups.
        ("h100_bf16_batched_nn", "mbb", "grid ", ["  boxes 3x128x"]),
        # K of groups begins at any row: A and B are overlapping boxes of the rows of a K step.
        ("h100_bf16_wgrad", "bbpb", "grid ", ["  boxes 128x64x256 strides", "  boxes 128x64x512 strides"]),
    ],
)
def test_a_launcher_of_groups_asks_for_what_the_kernel_needs(
    stem: str,
    parameters: str,
    grid: str,
    expected: list[str],
    built: Callable[[str], Path],
    run: Run,
    log: Callable[[], list[str]],
) -> None:
    directory = built(stem)
    found = run(directory / f"{stem}_test", directory / f"{stem}.cubin", 256, 512, 128, parameters=parameters)
    assert found.returncode == 1, found.stderr  # the driver multiplies nothing
    lines = log()
    assert any(line.startswith("cuLaunchKernelEx") and grid in line for line in lines)
    for wanted in expected:
        assert any(line.startswith(wanted) for line in lines), (wanted, lines)


MISUSE = """
#include "{stem}.h"
#include <stdio.h>
int main(int count, char **words)
{{
    {stem}_kernel *kernel;
    int status = {stem}_load(words[count - 1], &kernel);
    const {stem}_arguments right = {{
        .m = 4, .n = 16, .k = 24, .groups = 3, .a = {{256, 24}}, .b = {{256, 24}}, .offs = 4,
        .d = {{256, 16}}}};
    {stem}_arguments wrong;
#define TRY(change) wrong = right; wrong.change; status = {stem}_matmul(kernel, &wrong, NULL); \\
    printf("%s: %d %s\\n", #change, status, status ? {stem}_message() : "")
    TRY(groups = 0);
    TRY(groups = 33);
    TRY(groups = 3);
    TRY(n = 2147483392);
    TRY(k = 0);
    TRY(offs = 0);
    TRY(offs = 2);
    TRY(m = 0);
    TRY(d.row_stride = 8);
    return 0;
}}
"""


def test_wrong_groups_are_refused_in_words(built: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    directory = built(OFFSETS)
    (tmp_path / "misuse.c").write_text(MISUSE.format(stem=OFFSETS))
    sources = (tmp_path / "misuse.c", directory / f"{OFFSETS}.c")
    compiled_c("-I", directory, "-o", tmp_path / "misuse", *sources, "-ldl")
    found = run(tmp_path / "misuse", directory / f"{OFFSETS}.cubin")
    assert found.stdout.splitlines() == [
        "groups = 0: 6 groups must be from 1 to 32, found 0",
        "groups = 33: 6 groups must be from 1 to 32, found 33",
        "groups = 3: 0 ",
        "n = 2147483392: 6 b must have up to 2147483392 rows of all groups, found 6442450176",
        "k = 0: 6 k must be at least 1: rows of no group stay as they are",
        "offs = 0: 7 offs must be the address of int32 numbers",
        "offs = 2: 7 offs must be the address of int32 numbers",
        "m = 0: 0 ",
        "d.row_stride = 8: 8 d must not overlap itself, found rows of 16, 8 apart",
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("stem", KINDS)
def test_a_test_program_of_groups_finds_right_numbers_on_a_gpu(stem: str, tmp_path: Path) -> None:
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    export(spec_file(stem), tmp_path)
    command = ["make", "-C", str(tmp_path), f"CUDA_INCLUDE={cuda_include()}", "check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(re.findall(": right, 0 of", found.stdout)) == 2
