"""export of kernels with scales of blocks, of A and B or of D: launchers in C, with a driver that logs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fake_driver import compiled_driver, export_and_compile, started
from modules import WANTED, made, spec_file
from programs import compiled_c

from gemmgen.build import export
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.plan.exportable import refusals
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render import render_launcher
from gemmgen.render.launcher import Launcher
from gemmgen.triton_api import cuda_include

Run = Callable[..., subprocess.CompletedProcess[str]]

DENSE, EXPERTS, MASKED = (f"h100_e4m3_blockwise{name}" for name in ("", "_grouped", "_masked"))
COLUMNS, GROUPS_OF_K = "h100_e4m3_blockwise_wgrad", "h100_e4m3_blockwise_kgroups"
QUANTIZED, EXPERTS_QUANTIZED = "h100_e4m3_blockwise_quantized", "h100_bf16_masked_quantized"
SPLIT = "h100_e4m3_blockwise_split4"
KINDS = (DENSE, EXPERTS, MASKED, COLUMNS, GROUPS_OF_K, QUANTIZED, EXPERTS_QUANTIZED, SPLIT)


def is_scaled(spec: Path) -> bool:
    """Return True for the spec of a Hopper kernel that has scales of blocks and a launcher."""
    problem = made(spec).source.problem
    return (problem.scales_sums or problem.d_scale is not None) and not [
        *refusals(made(spec).plan, spec.stem)
    ]


EXPORTED = sorted(spec.stem for spec in WANTED if spec.stem.startswith("h100_") and is_scaled(spec))


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


def test_all_kernels_with_fp32_scales_but_those_of_two_kernels_are_exported() -> None:
    scaled = (made(spec) for spec in WANTED if spec.stem.startswith("h100_"))
    refused = {
        product.source.stem: {each.rule for each in refusals(product.plan, product.source.stem)}
        for product in scaled
        if product.source.problem.scales_sums or product.source.problem.d_scale
    }
    of_bytes = {stem: {"export-scales"} for stem in refused if "ue8m0" in stem}
    assert len(of_bytes) >= 10
    assert {stem: codes for stem, codes in refused.items() if codes} == {
        "h100_e4m3_blockwise_parallel": {"export-reduction"},
        **of_bytes,
    }
    assert len(EXPORTED) > 25


@pytest.mark.parametrize("stem", EXPORTED)
def test_a_compiler_takes_every_launcher_with_scales(stem: str, tmp_path: Path) -> None:
    for name, text in texts(stem).items():
        assert not re.search(r"{[{%#]|[%#]}|\bNone\b|\bTrue\b|\bFalse\b|[ \t]$", text, re.MULTILINE), name
        assert "\n\n\n" not in text
        (tmp_path / name).write_text(text)
    for name in (f"{stem}.c", f"{stem}_test.c"):
        compiled_c("-fsyntax-only", tmp_path / name)


@pytest.mark.parametrize("stem", KINDS)
def test_a_launcher_passes_what_the_compiled_kernel_takes(stem: str, tmp_path: Path) -> None:
    """`export` compares parameters, boxes and swizzles with the compiler's, and raises if one differs."""
    exported = export(spec_file(stem), tmp_path)
    assert (tmp_path / f"{stem}.cubin").read_bytes().startswith(b"\x7fELF")
    assert len(exported.files) == 5


def fields(stem: str) -> list[str]:
    """Return the members of a launcher's arguments that are scales."""
    lines = texts(stem)[f"{stem}.h"].splitlines()
    return [line.strip() for line in lines if re.search(r"\b[abd]_scale;", line)]


def test_a_header_says_how_scales_lie_in_memory() -> None:
    assert fields(DENSE) == [
        f"{DENSE}_matrix a_scale; /* ceil(K / 128) rows of M fp32: the scales of A */",
        "CUdeviceptr b_scale; /* ceil(N / 128) rows of ceil(K / 128) fp32: the scales of B */",
    ]
    assert fields(EXPERTS) == [
        f"{EXPERTS}_matrix a_scale; /* ceil(K / 128) rows of M fp32: the scales of A */",
        "CUdeviceptr b_scale; /* G x ceil(N / 128) rows of ceil(K / 128) fp32: the scales of B */",
    ]
    assert fields(MASKED)[0] == (
        f"{MASKED}_matrix a_scale; /* G x ceil(K / 128) rows of M fp32: the scales of A */"
    )
    assert (
        fields(COLUMNS)[1] == f"{COLUMNS}_matrix b_scale; /* ceil(K / 128) rows of N fp32: the scales of B */"
    )
    assert fields("h100_e4m3_blockwise_gated")[1] == (
        "CUdeviceptr b_scale; /* ceil(2N / 128) rows of ceil(K / 128) fp32: the scales of B */"
    )
    assert fields(EXPERTS_QUANTIZED) == [
        "CUdeviceptr d_scale; /* G x N / 128 rows of M fp32: the scales of D, which the kernel writes */"
    ]
    contract = " ".join(texts(DENSE)[f"{DENSE}.h"].replace("\n *", " ").split())
    assert "passed as an address begin every multiple of 4 scales, without a gap" in contract


CALLS: dict[str, tuple[str, str, tuple[int, int, int], str]] = {
    DENSE: ("mmtsm", "scaled", (37, 272, 400), "of 20128 elements"),
    COLUMNS: ("mmttm", "scaled", (37, 136, 400), "of 10064 elements"),
    EXPERTS: ("mmtspb", "scaled", (20, 136, 304), "of 5440 elements"),
    "h100_e4m3_blockwise_gated": ("mmtsm", "scaled gated", (21, 128, 304), "of 5376 elements"),
    "h100_e4m3_blockwise_swiglu": ("mmtspb", "scaled gated", (20, 128, 304), "of 5120 elements"),
    QUANTIZED: ("mmtsmq", "scaled", (37, 256, 400), "of 18944 elements"),
    "h100_bf16_quantized": ("mmmq", "1", (37, 256, 136), "of 18944 elements"),
}
"""Letters of the driver for the parameters of a kernel, words for what it multiplies, a problem, a result."""


@pytest.mark.parametrize("stem", CALLS)
def test_a_test_program_finds_right_and_wrong_numbers(
    stem: str, built: Callable[[str], Path], run: Run
) -> None:
    parameters, multiply, shape, elements = CALLS[stem]
    directory = built(stem)
    command = (directory / f"{stem}_test", directory / f"{stem}.cubin", *shape)
    found = run(*command, multiply=multiply, parameters=parameters)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    title = f"{stem} {'x'.join(map(str, shape))}"
    assert found.stdout.splitlines()[-1] == f"{title}: right, 0 {elements} wrong, 0 bytes beside D written"
    wrong = "doubled" if parameters.endswith("q") else "wrong"
    found = run(*command, multiply=f"{multiply} {wrong}", parameters=parameters)
    assert found.returncode == 1
    assert f"{title}: WRONG, " in found.stdout
    if wrong == "doubled":  # D is right, except for the last bit of half of its range
        assert "  the scale of D[0, 0] is " in found.stdout


def test_a_test_program_finds_scales_of_another_block(built: Callable[[str], Path], run: Run) -> None:
    """Scales of B by their address are given for scales of A, and A's for B's."""
    directory, (m, n, k) = built(EXPERTS), (20, 136, 304)
    command = (directory / f"{EXPERTS}_test", directory / f"{EXPERTS}.cubin", m, n, k)
    found = run(*command, multiply="1", parameters="mmtspb")  # which reads e4m3 as bf16
    assert found.returncode == 1
    assert "WRONG" in found.stdout


def test_a_launcher_describes_scales_as_the_kernel_reads_them(
    built: Callable[[str], Path], run: Run, log: Callable[[], list[str]]
) -> None:
    directory = built(DENSE)
    run(
        directory / f"{DENSE}_test",
        directory / f"{DENSE}.cubin",
        37,
        272,
        400,
        multiply="scaled",
        parameters="mmtsm",
    )
    lines = [line for line in log() if line.startswith(("cuTensorMap", "  "))][:9]
    # 4 blocks of K with 37 scales each, in rows that the test program has 44 apart.
    assert lines[2] == (
        "cuTensorMapEncodeTiled type 7 extents 4x37 stride 176 box 1x128 swizzle 0 L2 2 plain 1"
    )
    assert lines[6:8] == ["  matrix 4x37 strides 44 1 small 1", "  scales given"]


@pytest.mark.parametrize(
    ("stem", "parameters", "shape", "expected"),
    [
        (
            MASKED,
            "mmtspb",
            (128, 256, 256),
            ["  matrix 384x256", "  matrix 6x128 strides 132", "  scales given", "  boxes 385x"],
        ),
        (GROUPS_OF_K, "mmttpb", (128, 128, 512), ["  matrix 4x128 strides 132", "  boxes 385x"]),
        (SPLIT, "mmtsm", (16, 64, 2048), ["  matrix 16x16 strides 20"]),
        (EXPERTS_QUANTIZED, "mmpbq", (64, 256, 256), ["  scales given", "  boxes 193x"]),
    ],
)
def test_a_launcher_asks_for_what_the_kernel_needs(
    stem: str,
    parameters: str,
    shape: tuple[int, int, int],
    expected: list[str],
    built: Callable[[str], Path],
    run: Run,
    log: Callable[[], list[str]],
) -> None:
    directory = built(stem)
    found = run(directory / f"{stem}_test", directory / f"{stem}.cubin", *shape, parameters=parameters)
    assert found.returncode == 1, found.stderr  # the driver multiplies nothing
    lines = log()
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
        .m = 6, .n = 256, .k = 272, .a = {{256, 272}}, .b = {{256, 272}},
        .a_scale = {{256, 8}}, .b_scale = 512, .d = {{256, 256}}, .d_scale = 1024}};
    {stem}_arguments wrong;
#define TRY(change) wrong = right; wrong.change; status = {stem}_matmul(kernel, &wrong, NULL); \\
    printf("%s: %d %s\\n", #change, status, status ? {stem}_message() : "")
    TRY(m = 6);
    TRY(a_scale.address = 0);
    TRY(a_scale.address = 260);
    TRY(a_scale.row_stride = 4);
    TRY(a_scale.row_stride = 9);
    TRY(b_scale = 0);
    TRY(b_scale = 516);
    TRY(d_scale = 0);
    TRY(n = 192);
    TRY(k = 0);
    return 0;
}}
"""


def test_wrong_scales_are_refused_in_words(built: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    directory = built(QUANTIZED)
    (tmp_path / "misuse.c").write_text(MISUSE.format(stem=QUANTIZED))
    sources = (tmp_path / "misuse.c", directory / f"{QUANTIZED}.c")
    compiled_c("-I", directory, "-o", tmp_path / "misuse", *sources, "-ldl")
    found = run(tmp_path / "misuse", directory / f"{QUANTIZED}.cubin")
    assert found.stdout.splitlines() == [
        "m = 6: 0 ",
        "a_scale.address = 0: 7 a_scale must have memory, found address 0",
        "a_scale.address = 260: 7 a_scale must start at a multiple of 16 bytes, found 4 bytes past one",
        "a_scale.row_stride = 4: 8 a_scale must not overlap itself, found rows of 6, 4 apart",
        "a_scale.row_stride = 9: 8 a_scale must have rows a multiple of 16 bytes apart, found 9 elements",
        "b_scale = 0: 7 b_scale must be the address of fp32 numbers, a multiple of 16",
        "b_scale = 516: 7 b_scale must be the address of fp32 numbers, a multiple of 16",
        "d_scale = 0: 7 d_scale must be the address of fp32 numbers, a multiple of 16",
        "n = 192: 6 d must have a multiple of 128 columns, which share a scale, found 192 columns",
        "k = 0: 6 k must be at least 1: the scales of D are not zero where A @ B is",
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("stem", EXPORTED)
def test_a_test_program_with_scales_finds_right_numbers_on_a_gpu(stem: str, tmp_path: Path) -> None:
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    export(spec_file(stem), tmp_path)
    command = ["make", "-C", str(tmp_path), f"CUDA_INCLUDE={cuda_include()}", "check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(re.findall(": right, 0 of", found.stdout)) == 2
