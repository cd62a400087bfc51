"""A library: what it is made from, which kernel a shape gets, and what is said where something is wrong."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from commands import Gemmgen
from contests import BF16, E4M3_TENSOR, contest
from fake_gpu import cuda, on_a_fake_gpu
from fake_triton import on_a_fake_driver
from made_library import imported_library, tuned_row
from modules import ROOT, libraries_folder, spec_file
from told import refusal

import gemmgen_table
from gemmgen import library
from gemmgen.bench.result_log import ResultLog
from gemmgen.bench.suite_file import load_suite
from gemmgen.hardware.gpus import GPUS
from gemmgen.launcher_file import launcher_texts, library_texts
from gemmgen.library import SelectionReport, exchange, package, pinned, source_files
from gemmgen.library.assemble import assemble, launched_early, words_of
from gemmgen.library.manifest import LIBRARY_FORMAT, PART_NAMES, TAKEN_NAMES
from gemmgen.library.pinned import KernelObservation, anonymous
from gemmgen.library.sources import Sources, read
from gemmgen.library.texts import rendered
from gemmgen.plan.wgmma.cost import card_of
from gemmgen.planner import family_for
from gemmgen.problem import Shape
from gemmgen.product import make
from gemmgen.spec import load_spec
from tools.rendered import libraries, packed
from tools.rendered import library as built_library

pytestmark = pytest.mark.quick
pytest_plugins = ["commands"]

RECORDS, SPECS = ROOT / "benchmarks", ROOT / "specs"
LIBRARIES = {
    "h200_bf16": (
        BF16,
        "suites/h200_few_rows",
        "suites/h200_many_rows",
        "suites/h200_middle_rows",
        "suites/h200_long_k",
        "suites/h200_strangers_bf16",
    ),
    "h200_e4m3": (
        E4M3_TENSOR,
        "suites/h200_few_rows_e4m3",
        "suites/h200_many_rows_e4m3",
        "suites/h200_strangers_e4m3",
    ),
}
"""The committed libraries: the problem of each, and the records that it is made from."""
OF_GROUPS = "h200_bf16_experts"
"""The committed library of kernels of groups, which is made from its specs."""
CARD = "NVIDIA H200"
FP16 = contest("h100_fp16")


def row(spec: str, shape: Sequence[int], seconds: float, **other: object) -> dict[str, object]:
    """Return a row of a table of `gemmgen tune` for a committed spec that lies beside it."""
    return tuned_row(SPECS / spec, shape, seconds, **other)


def table(path: Path, *rows: dict[str, object]) -> Path:
    """Write a table, and the specs that it names beside it."""
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    for each in rows:
        spec = SPECS / str(each["spec"])
        if spec.exists():
            shutil.copy(spec, path.parent)
    return path


ROWS8, SQUARE, WIDE = "h100_bf16_rows8.yaml", "h100_bf16_128x128.yaml", "h100_bf16.yaml"
FEW, SOME, MANY = "tiny_exchanged_8x64x256", "tiny_cooperative_128x128x64", "tiny_cooperative_128x256x64"
"""What a library calls the kernels of these specs, in this order."""


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A table of three kernels: of few rows, of some, of many."""
    return table(
        tmp_path / "table.jsonl",
        row(ROWS8, (8, 4096, 4096), 1e-5),
        row(SQUARE, (64, 4096, 4096), 2e-5),
        row(WIDE, (512, 4096, 4096), 3e-5),
        row(WIDE, (4096, 4096, 4096), 2e-4),
    )


@pytest.fixture
def made(tuned: Path, tmp_path: Path) -> Generator[ModuleType]:
    """The library of that table, imported."""
    found = read([tuned])
    assert found.warnings == ()
    package.write(assemble("tiny", found, library.choose(found)), tmp_path)
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module("tiny")
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "tiny"]:
            del sys.modules[name]


# --- which kernel


def test_a_tuned_shape_gets_the_kernel_that_was_the_fastest(made: ModuleType) -> None:
    assert made.explain(512, 4096, 4096, gpu=CARD) == (
        f"{MANY}: tuned on {CARD} for 512 x 4096 x 4096: 30.0 us measured, 50.0 us of the baseline"
    )


def test_other_m_of_a_tuned_layer_get_their_kernel_by_the_corrected_rule(made: ModuleType) -> None:
    """The fastest tile at one M fills its waves there. At other M it may leave SMs idle."""
    assert made.choose(513, 4096, 4096, gpu=CARD).why.startswith("not tuned: ")
    assert [made.choose(m, 4096, 4096).kernel for m in (8, 9, 64, 512)] == [FEW, FEW, SOME, MANY]


def test_another_shape_gets_its_kernel_by_the_rule_and_says_what_is_nearest(made: ModuleType) -> None:
    found = made.explain(1024, 2048, 2048, gpu=CARD)
    assert re.fullmatch(r"tiny_\w+: not tuned: .+ \d+ x 4096 x 4096", found)
    assert made.choose(4, 1024, 1024).kernel == FEW


def test_a_table_of_another_card_is_not_used_and_that_is_said_once(made: ModuleType) -> None:
    other = "NVIDIA H100 80GB HBM3"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = made.explain(64, 4096, 4096, gpu=other)
        made.explain(65, 4096, 4096, gpu=other)
    (only,) = said
    assert all(
        word in str(only.message) for word in (CARD, other, "accept_table()", "GEMMGEN_ACCEPT_TABLE=1")
    )
    assert re.search(rf": not tuned: .+ on {other} of 132 SMs$", found)
    made.library.chosen["before"] = None
    made.accept_table()
    assert not made.library.chosen
    assert "tuned on NVIDIA H200 for" in made.explain(64, 4096, 4096, gpu=other)


def test_a_choice_is_kept_and_a_kernel_is_imported_for_its_first_call(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(name.startswith("tiny.tiny") for name in sys.modules)
    called: list[tuple[str, Any]] = []

    def host_of(name: str) -> SimpleNamespace:
        def run(a: object, b: object, *, out: object = None) -> str:
            called.append((name, out))
            return name

        return SimpleNamespace(run=run)

    monkeypatch.setattr(made.library, "host_of", cache(host_of))
    monkeypatch.setattr(importlib.import_module("tiny.gemmgen_library"), "MOST_CHOSEN", 2)
    b = torch.empty(4096, 4096, dtype=torch.bfloat16).T
    for m in (8, 8, 64, 512):
        a, out = torch.empty(m, 4096, dtype=torch.bfloat16), torch.empty(0)
        assert made.matmul(a, b, out=out) == called[-1][0]
        assert called[-1][1] is out
        assert len(made.library.chosen) <= 2
    assert [name for name, _ in called] == [FEW, FEW, SOME, MANY]


def test_what_is_no_pair_of_matrices_is_named_by_a_kernel(made: ModuleType) -> None:
    a = torch.empty(8, 4096, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"a must be a tensor of torch\.bfloat16, found int$"):
        made.matmul(1, a)
    with pytest.raises((TypeError, ValueError), match="must"):
        made.matmul(a, torch.empty(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="a must be on a CUDA device, found cpu"):
        made.matmul(a, torch.empty(4096, 4096, dtype=torch.bfloat16).T)
    assert f"tiny.{FEW}" in sys.modules


def test_a_known_call_asks_no_kernel_again(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    driver = on_a_fake_driver(importlib.import_module(f"tiny.{FEW}"), monkeypatch)
    a, b, out = cuda(8, 4096), cuda(4096, 4096).T, cuda(8, 4096)
    rows, into = a.view(2, 4, 4096), out.view(2, 4, 4096)
    made.matmul(a, b, out=out)
    made.matmul(rows, b, out=into)
    assert (len(driver.jit), len(driver.direct)) == (1, 1)
    with monkeypatch.context() as context:
        context.setattr(made.library, "host_for", None)
        assert made.matmul(a, b, out=out) is out
        assert made.matmul(rows, b, out=into) is into
    assert (len(driver.jit), len(driver.direct)) == (1, 3)
    made.accept_table()  # other kernels may be chosen from now on
    made.matmul(a, b, out=out)
    assert (len(driver.jit), len(driver.direct)) == (1, 4)


@pytest.mark.parametrize(
    ("a", "b", "dtype", "found"),
    [
        ((4, 7), (7, 8), torch.bfloat16, "7"),
        ((4, 8), (8, 8), torch.float16, "torch.float16"),
        ((4, 8), (16, 8), torch.bfloat16, "16"),
        ((4,), (8, 8), torch.bfloat16, "shape [4]"),
        ((4, 0), (0, 8), torch.bfloat16, "shape [4, 0]"),
        ((2**31, 8), (8, 8), torch.bfloat16, "2147483648"),
    ],
)
def test_what_a_library_cannot_do_it_says(
    made: ModuleType, a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype, found: str
) -> None:
    able, why = made.can_implement(a, b, dtype)
    assert not able
    assert why.endswith(f", found {found}")


def test_it_can_implement_an_a_without_rows_as_its_matmul_does(made: ModuleType) -> None:
    with pytest.raises(TypeError, match="a_shape and b_shape must be shapes, found 8 and 4096"):
        made.can_implement(8, 4096, 4096)
    with pytest.raises(TypeError, match=r"shapes must be triples \(M, N, K\), found 8"):
        made.warmup((8, 4096, 4096), device="meta")
    assert made.can_implement((0, 4096), (4096, 4096))[0]
    assert not made.can_implement((8, 0), (0, 4096))[0]
    for function in (made.explain, made.choose):
        with pytest.raises(ValueError, match="m, n and k must be 1 or more, found 0, 16 and 16"):
            function(0, 16, 16)


def test_what_it_can_do_comes_with_the_kernel(made: ModuleType) -> None:
    able, why = made.can_implement((8, 4096), (4096, 4096))
    assert able
    assert why.startswith(f"{FEW}: tuned ")


@pytest.mark.check
def test_importing_a_library_imports_no_kernel_and_needs_neither_gpu_nor_triton(
    made: ModuleType, tmp_path: Path
) -> None:
    code = (
        "import sys, torch; before = {'triton'} & set(sys.modules); import tiny;"
        f"assert not {{'tiny.{FEW}', 'tiny.{SOME}', 'tiny.{MANY}'}} & set(sys.modules);"
        "assert 'tuned on' in tiny.explain(8, 4096, 4096, gpu=tiny.GPU);"
        "assert not {'triton', 'gemmgen'} & set(sys.modules) - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PATH": ""})


def test_a_library_has_a_matmul_with_a_signature_and_a_docstring_of_its_own(made: ModuleType) -> None:
    signature = "(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor"
    assert str(inspect.signature(made.matmul)) == signature
    assert str(made.matmul.__doc__).startswith(
        "Return a @ b.\n\n    Args:\n        a: [M, K], torch.bfloat16"
    )


def test_no_kernel_can_have_the_name_of_a_value_of_a_package(made: ModuleType) -> None:
    names = {name for name in vars(made) if not name.startswith("__")}
    assert names - TAKEN_NAMES == set()
    assert names - PART_NAMES == TAKEN_NAMES - PART_NAMES - {"arrange_scales"}


def test_the_files_that_all_libraries_share_are_copies(made: ModuleType, tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in (tmp_path / "tiny").glob("*.py")}
    shared = {**launcher_texts(), **library_texts()}
    for module in ("plan/forecast", "plan/group_forecast", "plan/timing", "plan/cards", "problem/groups"):
        path = ROOT / "gemmgen" / f"{module}.py"
        shared[path.name] = path.read_text()
    assert {name: files[name] for name in shared} == shared
    assert files.keys() - shared.keys() == {"__init__.py", *(f"{name}.py" for name in made.KERNELS)}


# --- the table at run time


def test_gemmgen_and_a_library_agree_on_the_format_of_a_table() -> None:
    assert gemmgen_table.FORMAT == LIBRARY_FORMAT


CUT = "is cut, or is no table of a library"
WRONG_TABLES: dict[str, tuple[Callable[[str], str | None], str]] = {
    "missing": (lambda _: None, "cannot be read, No such file or directory"),
    "cut": (lambda text: text[: len(text) // 2], CUT),
    "of another format": (
        lambda text: text.replace('"format": 5', '"format": 4'),
        "has format 4, and this library reads format 5",
    ),
    "empty": (lambda _: '{"format": 5}', CUT),
    "a list": (lambda _: "[]", CUT),
    "of another type": (lambda text: text.replace('"bfloat16"', '"bfloat17"'), CUT),
    "of a GPU without SMs": (lambda text: text.replace('"sm_count": 132, ', ""), CUT),
}
"""Changes of table.json, None for no file, and words of the error."""


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_a_library_with_a_wrong_table_is_not_imported_and_says_so_in_one_sentence(
    case: str, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = WRONG_TABLES[case]
    found = read([tuned])
    path = package.write(assemble("tableless", found, library.choose(found)), tmp_path) / "table.json"
    text = change(path.read_text())
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(ImportError) as error:
        imported_library("tableless", tmp_path, monkeypatch)
    (line,) = str(error.value).splitlines()
    assert line.startswith(str(path))
    assert said in line
    assert line.endswith(": make the library again, or install it again")
    assert not hasattr(torch.ops.gemmgen, "tableless")


def test_groups_are_for_libraries_of_groups_alone(made: ModuleType) -> None:
    for function in (made.choose, made.explain):
        with pytest.raises(TypeError, match="this library has no groups, found 3"):
            function(8, 4096, 4096, 3)
        with pytest.raises(TypeError, match="only a library of masked groups takes expected_m"):
            function(8, 4096, 4096, expected_m=3)
    with pytest.raises(TypeError, match="this library has no groups, found 3"):
        made.warmup([(8, 4096, 4096)], groups=3, device="meta")


def test_specs_alone_make_a_library_that_the_rule_decides(tmp_path: Path) -> None:
    found = read([SPECS / ROWS8, SPECS / WIDE])
    written = assemble("untuned", found, library.choose(found))
    assert str(written).startswith("2 kernels; nothing measured")
    path = package.write(written, tmp_path)
    specs, choose = package.contestants(path)
    assert [path.name for path in specs] == [ROWS8, WIDE]
    assert (choose((8, 4096, 4096)), choose((4096, 4096, 4096))) == ("h100_bf16_rows8", "h100_bf16")
    assert "untuned" not in sys.modules


def test_kernels_of_a_library_start_early_where_they_can_and_wait_themselves(tuned: Path) -> None:
    found = read([tuned])
    choice = library.choose(found)
    plain, early = (assemble("tiny", found, choice, dependent=dependent) for dependent in (False, True))
    assert early.as_dict() == plain.as_dict()
    assert early.measured == plain.measured
    for member, usual in zip(early.members, plain.members, strict=True):
        plan = member.product.plan
        assert (plan.dependent, plan.read_early) == (True, None)
        assert anonymous(replace(plan, early_operand="none", trigger="end")) == anonymous(usual.product.plan)
    # A pair of kernels starts behind all that is ahead.
    (pair,) = read([SPECS / "h100_bf16_split8_parallel.yaml"]).specs
    assert launched_early(pair, make(SPECS / WIDE).source.spec, "pair") is None


def test_every_kernel_is_the_module_of_its_spec(made: ModuleType, tmp_path: Path) -> None:
    for name, own in {FEW: ROWS8, SOME: SQUARE, MANY: WIDE}.items():
        spec, module = tmp_path / "tiny" / "specs" / f"{name}.yaml", tmp_path / "tiny" / f"{name}.py"
        assert module.read_text() == make(spec).module
        # But for what the specs say of themselves, and the operators' names, both modules are the same.
        ours, theirs = (make(path).module.partition('"""\n\nimport')[2] for path in (spec, SPECS / own))
        assert ours == theirs.replace(Path(own).stem, name)


def test_a_kernel_that_a_spec_specifies_is_the_one_that_build_makes(tmp_path: Path) -> None:
    found = read([SPECS / WIDE])
    files = rendered(assemble("own", found, library.choose(found)))
    assert files["h100_bf16.py"] == (ROOT / "generated" / "h100_bf16.py").read_text()
    assert files["specs/h100_bf16.yaml"] == (SPECS / WIDE).read_text()


# --- the choice


def measurement(kernel: str, shape: tuple[int, int, int], ratio: float) -> KernelObservation:
    (found,) = read([SPECS / kernel]).specs
    return KernelObservation(shape, found, 1e-5 / ratio, 1e-5)


def chosen(*found: KernelObservation, limit: int = 32) -> library.Selection:
    spec = read([SPECS / WIDE]).spec
    return library.choose(Sources(BF16, "bf16", spec, CARD, "cuBLAS", tuple(found)), limit)


def test_few_kernels_are_those_that_lose_least() -> None:
    shapes = [(m, 4096, 4096) for m in (128, 256, 512, 1024)]
    some = [
        measurement(SQUARE, shape, ratio) for shape, ratio in zip(shapes, (1.2, 1.0, 0.9, 0.5), strict=True)
    ]
    others = [
        measurement(WIDE, shape, ratio) for shape, ratio in zip(shapes, (1.1, 1.1, 1.1, 1.1), strict=True)
    ]
    assert chosen(*some, *others, limit=1).kernels == (others[0].kernel,)
    both = chosen(*some, *others, limit=2)
    assert both.kernels == (others[0].kernel, some[0].kernel)
    assert [both.fastest[shape] for shape in shapes] == [some[0].kernel] + 3 * [others[0].kernel]


def test_what_was_measured_nearby_corrects_what_is_predicted() -> None:
    near, far = (1024, 4096, 4096), (64, 512, 32768)
    (kernel,) = {measurement(WIDE, near, 1).kernel}
    (other,) = read([SPECS / SQUARE]).specs
    plain = library.forecast_of([kernel, other])
    assert plain.expected(kernel, near) == plain.predicted(kernel, near)
    slow = KernelObservation(near, kernel, 2 * plain.predicted(kernel, near), 1.0)
    usual = KernelObservation(near, other, plain.predicted(other, near), 1.0)
    forecast = library.forecast_of([kernel, other], (slow, usual))
    # At the shape itself half of what it is beside the mean of both (which is the square root of 2) counts.
    assert forecast.expected(kernel, near) == pytest.approx(plain.predicted(kernel, near) * 2**0.75)
    assert forecast.expected(kernel, far) == pytest.approx(plain.predicted(kernel, far) * 2**0.5, rel=1e-2)
    assert forecast.nearest(kernel, far) == near
    assert plain.nearest(kernel, far) is None


# --- the committed libraries


def committed_files(name: str) -> list[Path]:
    """What git has of a library: the manifest with digests of all its files, the table, and the specs."""
    folder = ROOT / "libraries" / name
    sources = [folder / "library.json", folder / "table.json", *sorted(folder.glob("specs/*.yaml"))]
    return [path.relative_to(folder) for path in sources]


def test_the_committed_libraries_are_these() -> None:
    assert [each.folder.name for each in libraries()] == sorted([*LIBRARIES, OF_GROUPS])


@pytest.mark.check
@pytest.mark.parametrize("name", [*LIBRARIES, OF_GROUPS])
def test_a_library_is_rendered_from_what_git_has_of_it_and_has_the_recorded_digests(name: str) -> None:
    """Where a change is meant to move its bytes, ``python -m tools.rendered --record`` records them."""
    made = built_library(name)
    assert made.moved(made.render()) == []
    assert package.check(libraries_folder() / name) == ()


@pytest.mark.check
@pytest.mark.parametrize("name", LIBRARIES)
def test_an_archive_of_a_library_has_its_package_and_always_the_same_bytes(name: str) -> None:
    files = built_library(name).render()
    archive = packed(name, files)
    assert archive == packed(name, dict(reversed([*files.items()])))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        members = {member.name: opened.extractfile(member) for member in opened.getmembers()}
        found = {path: file.read().decode() for path, file in members.items() if file}
    assert found == {f"{name}/{path}": text for path, text in files.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_committed_library_follows_from_its_records_byte_for_byte_and_the_page_has_its_figures(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    problem, *records = LIBRARIES[name]
    found = read([RECORDS / f"{record}.jsonl" for record in records], str(problem))
    choice = library.choose(found)
    files = rendered(assemble(name, found, choice))
    assert {file.as_posix() for file in committed_files(name)} <= files.keys()
    for file in committed_files(name):
        assert (ROOT / "libraries" / name / file).read_bytes() == files[file.as_posix()].encode(), file
    assert {file: (libraries_folder() / name / file).read_text() for file in files} == files
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    for line in SelectionReport.of(found, choice, library.KERNELS).lines():
        assert line in page.splitlines()


@pytest.mark.check
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_predicts_what_the_planner_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    forecast = importlib.import_module(name).library.table.forecast(is_measured=False)
    draw = random.Random(7)
    for member in package.read_library(ROOT / "libraries" / name).members:
        plan = member.product.plan
        for _ in range(20):
            shape = drawn_shape(draw)
            expected = family_for(plan).estimate(plan, shape).seconds
            assert math.isclose(forecast.predicted(member.stem, shape), expected, rel_tol=1e-12)


def drawn_shape(draw: random.Random) -> Shape:
    m, n, k = (round(2 ** draw.uniform(*ends)) for ends in ((0, 14), (4, 16), (5, 15)))
    return m, n, k


@pytest.mark.check
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_name_of_a_committed_kernel_is_made_of_its_decisions(name: str) -> None:
    """With the order of tiles, where another kernel of the library differs in that alone."""
    for member in package.read_library(ROOT / "libraries" / name).members:
        (plan,) = library.predictable(name, [member.product.plan])
        words = f"{name}_{words_of(plan)}"
        assert member.stem in (words, f"{words}_{plan.order}")


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        (
            "h100_bf16_split8_parallel",
            "cooperative_128x128x64_cluster2x1_split8_added_up_in_parallel",
        ),
        ("h100_bf16_blocked", "blocked_128x128x64_occupancy3_q0"),
    ],
)
def test_a_kernel_is_named_by_what_is_unusual_in_it(stem: str, words: str) -> None:
    (plan,) = library.predictable(stem, [make(spec_file(stem)).plan])
    assert words_of(plan) == words


# --- other cards than the one that was measured


def bf16_on(gpu: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The committed library's times on a GPU of this name, which is not at hand."""
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    return importlib.import_module("h200_bf16").library.table.forecast(gpu, is_measured=False)


@pytest.mark.parametrize(
    ("gpu", "sms", "tb_per_s", "tflops"),
    [
        ("NVIDIA H20", 78, 4.0, 148),
        ("NVIDIA H20-3e", 78, 4.8, 148),
        ("NVIDIA H100 PCIe", 114, 2.0, 756),
        ("NVIDIA H100 NVL", 132, 3.9, 835),
        ("NVIDIA H100 80GB HBM3", 132, 3.35, 989.4),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 3.35 / 8, 989.4 * 16 / 132),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 16, 3.35 / 4, 989.4 * 16 / 132),
        ("NVIDIA H200 MIG 2g.35gb", 32, 4.8 / 4, 989.4 * 32 / 132),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 132, 3.35, 989.4),
        ("NVIDIA GH200 480GB", 132, 4.0, 989.4),
    ],
)
def test_another_card_s_times_are_those_of_its_sms_its_bandwidth_and_its_peak(
    gpu: str, sms: int, tb_per_s: float, tflops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast = bf16_on(gpu, monkeypatch)
    assert forecast.card.sm_count == sms

    def least(shape: Shape) -> float:
        return min(forecast.predicted(name, shape) for name in forecast.candidates(shape))

    weights = (16, 16384, 16384)
    assert 1 <= least(weights) / (2 * 16384**2 / (tb_per_s * 1e12)) < 1.3
    square = (8192, 8192, 8192)
    assert 1 <= least(square) / (2 * 8192**3 / (tflops * 1e12)) < 1.45


def test_on_another_card_a_kernel_takes_what_the_planner_predicts_of_a_plan_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU with as good SMs as an H200, but 72 of them, and half the bandwidth."""
    own = bf16_on("NVIDIA H200", monkeypatch)
    fewer = replace(
        GPUS["h200"],
        sm_count=72,
        dram_bytes_per_second=2.4e12,
        dense_16bit_flops_per_second=GPUS["h200"].dense_16bit_flops_per_second * 72 / 132,
        clusters_of_four=16,
    )
    forecast = own.on(card_of(fewer))
    draw = random.Random(5)
    for member in package.read_library(ROOT / "libraries" / "h200_bf16").members:
        plan = member.product.plan
        other = replace(plan, request=replace(plan.request, gpu=fewer))
        for _ in range(5):
            shape = drawn_shape(draw)
            expected = family_for(other).estimate(other, shape).seconds
            assert math.isclose(forecast.predicted(member.stem, shape), expected, rel_tol=1e-12)


def test_a_device_at_hand_says_how_many_sms_it_has(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"

    class Properties:
        def __init__(self, device: int) -> None:
            self.name, self.multi_processor_count = (("another", 132), (name, 60))[device]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", Properties)
    card = made.library.table.forecast(name, is_measured=False).card
    assert (card.sm_count, card.dram_bytes_per_second) == (60, 3.35e12 / 2)
    with pytest.warns(UserWarning, match="accept_table"):
        assert f" on {name} of 60 SMs" in made.choose(48, 4096, 4096, gpu=name).why
    unknown = made.library.table.forecast("another", is_measured=False).card
    assert unknown.sm_count == 132


def test_an_accepted_table_corrects_the_times_of_another_card(made: ModuleType) -> None:
    gpu, name, shape = "NVIDIA H20", made.KERNELS[0], (100, 5120, 5120)
    own, theirs = (made.library.table.forecast(each, is_measured=True) for each in (None, gpu))
    ratio = own.expected(name, shape) / own.predicted(name, shape)
    assert ratio != 1
    assert theirs.expected(name, shape) / theirs.predicted(name, shape) == pytest.approx(ratio)
    assert theirs.predicted(name, shape) > own.predicted(name, shape)


# --- before the first request


@pytest.mark.parametrize("call", ["choose", "explain", "warmup"])
@pytest.mark.parametrize("shape", [(0, 16, 16), (-1, 2, 3), (16, 0, 16), (4, 4, -8)])
def test_sizes_that_are_not_positive_are_refused_in_one_way(
    made: ModuleType, call: str, shape: Shape
) -> None:
    m, n, k = shape
    with pytest.raises(ValueError, match=f"m, n and k must be 1 or more, found {m}, {n} and {k}"):
        made.warmup([shape], device="meta") if call == "warmup" else getattr(made, call)(m, n, k)


def test_a_warmup_calls_the_kernel_of_each_shape_with_tensors_that_it_takes(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, ran = [(512, 4096, 4096), (48, 4096, 4096), (3, 136, 72)], list[str]()
    found = made.library.host_of

    def host_of(name: str) -> object:
        ran.append(name)
        return found(name)

    monkeypatch.setattr(made.library, "host_of", host_of)
    made.warmup(shapes, device="meta")  # checks dtypes, layouts and extents, and launches nothing
    assert ran == [made.choose(*shape).kernel for shape in shapes]


@pytest.mark.parametrize(
    "stem", ["h100_bf16_nn", "h100_bf16_tt", "h100_bf16_residual", "h100_e4m3_scaled", "h100_int8_scaled"]
)
def test_a_warmup_has_every_kind_of_input(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read([spec_file(stem)])
    package.write(assemble(f"warm_{stem}", found, library.choose(found)), tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.import_module(f"warm_{stem}").warmup([(256, 512, 1024)], device="meta")


@pytest.mark.gpu
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_graph_can_be_captured_after_a_warmup(name: str) -> None:
    """In a new process: nothing has been compiled there."""
    code = f"""
import torch, {name}
shape = (100, 1024, 2048)
{name}.warmup([shape])
m, n, k = shape
dtype = torch.bfloat16 if "bf16" in "{name}" else torch.float8_e4m3fn
a, b = (torch.randn(rows, k, device="cuda").to(dtype) for rows in (m, n))
scale = {{}} if "bf16" in "{name}" else {{"tensor_scale": torch.ones(1, device="cuda")}}
torch.cuda.synchronize()
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    d = {name}.matmul(a, b.T, **scale)
graph.replay()
torch.testing.assert_close(d.float(), a.float() @ b.float().T, rtol=1e-2, atol=1)
"""
    places = [str(libraries_folder()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


CHOICES = ROOT / "tests" / "library_choices.json"
"""The choices of the committed libraries for shapes of a seed, and for all measured ones: a letter for each
shape, by the measured times nearby, and by predicted times alone.

They are of the kernels of 64 that strangers' layers chose too, and of a time that knows rows outside of A.
"""


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("measured", [True, False], ids=["corrected", "predicted"])
def test_a_library_chooses_as_recorded(name: str, measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    made = importlib.import_module(name)
    forecast = made.library.table.forecast(is_measured=measured)
    record = json.loads(CHOICES.read_text())
    draw = random.Random(record["seed"])
    shapes = [drawn_shape(draw) for _ in range(record["drawn"])]
    shapes += sorted({shape for each in made.library.table.measured.values() for shape in each})
    letters = record[name]["corrected" if measured else "predicted"]
    assert len(letters) == len(shapes) > 2_000
    for shape, letter in zip(shapes, letters, strict=True):
        before = made.KERNELS[record["letters"].index(letter)]
        found = forecast.best(forecast.candidates(shape), shape)
        if measured:
            assert found == before, shape
        elif found != before:  # as good: to nine digits, which that formula had, its time was the longer one
            times = (forecast.predicted(kernel, shape) for kernel in (found, before))
            assert math.isclose(*times, rel_tol=1e-12), shape


def test_kinds_of_kernels_that_no_library_has_are_predicted_likewise(tmp_path: Path) -> None:
    """Tiles without roles, promotion, C and vectors, an early launch: each has terms."""
    for stem in (
        "h100_bf16_pipelined",
        "h100_e4m3_promoted",
        "h100_bf16_residual",
        "h100_e4m3_scaled",
        "h100_bf16_early",
    ):
        found = read([spec_file(stem)])
        name = f"only_{stem}"
        specs, _ = package.contestants(package.write(assemble(name, found, library.choose(found)), tmp_path))
        made = importlib.import_module(f"{package.IMPORTED}{name}")
        forecast = made.library.table.forecast(is_measured=False)
        plan = make(specs[0]).plan
        for shape in ((512, 4096, 4096), (4096, 8192, 512), (300, 776, 392)):
            expected = family_for(plan).estimate(plan, shape).seconds
            assert math.isclose(forecast.predicted(stem, shape), expected, rel_tol=1e-12)


def test_the_untuned_shapes_are_drawn_and_new() -> None:
    known = {
        shape[1:]
        for family in load_suite(RECORDS / "suites" / "h200.yaml").families
        for shape in family.shapes
    }
    draw, found = random.Random(15), list[tuple[int, int, int]]()
    while len(found) < 16:
        m = round(2 ** draw.uniform(0, 13))
        n, k = 64 * round(2 ** draw.uniform(3, 9)), 64 * round(2 ** draw.uniform(3, 8))
        if (n, k) not in known:
            found.append((m, n, k))
    (family,) = load_suite(RECORDS / "suites" / "untuned.yaml").families
    assert family.shapes == tuple(found)


# --- what is wrong


def test_sources_that_are_none_are_refused(tmp_path: Path, tuned: Path) -> None:
    other = tmp_path / "other.jsonl"

    def refused(path: Path) -> tuple[str, str, int | None, str | None]:
        found = refusal(lambda: read([path]))
        return Path(found.path).name, found.code, found.line, found.field

    assert refused(tmp_path / "no.jsonl") == ("no.jsonl", "file-missing", None, None)
    other.write_text('{"a": 1}\n')
    assert refused(other) == ("other.jsonl", "bad-source", None, None)
    other.write_text(tuned.read_text() + "half a li")
    assert refused(other) == ("other.jsonl", "bad-table", 5, None)
    table(other, row(WIDE, (1, 2, 3), 1e-5, format=3))
    assert refused(other) == ("other.jsonl", "bad-table", 1, "format")
    table(other, row(WIDE, (1, 2, 3), -1e-5))
    assert refused(other) == ("other.jsonl", "bad-table", 1, "seconds")
    table(other, {**row(WIDE, (1, 2, 3), 1e-5), "spec": "gone.yaml"})
    assert refused(other) == ("other.jsonl", "source-spec", 1, None)


def test_two_problems_or_two_cards_in_one_library_are_refused(tmp_path: Path, tuned: Path) -> None:
    two = [SPECS / WIDE, SPECS / "h100_fp16.yaml"]
    for found, code in (
        (refusal(lambda: read(two)), "mixed-problems"),
        (refusal(lambda: read(two, "int8")), "no-kernels"),
    ):
        assert found.code == code
        assert all(f"{problem}" in found.message for problem in (BF16, FP16))
    assert [source.stem for source in read(two, FP16.matmul[:6]).specs.values()] == ["h100_fp16"]
    other = table(tmp_path / "other.jsonl", row(WIDE, (1, 2, 3), 1e-5, gpu="NVIDIA H100 80GB HBM3"))
    assert refusal(lambda: read([tuned, other])).code == "mixed-gpus"


def promising(path: Path, *lines: str) -> Path:
    """Write a spec of bf16 with these lines besides, and return its path."""
    operands = "{a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
    head = [f"title: {path.stem}", "target: h200", f"operands: {operands}"]
    path.write_text("".join(f"{line}\n" for line in (*head, *lines)))
    return path


PROMISE = "batch_invariant: true"
PARTS = ("tile: {m: 16, n: 64, k: 128}", "mma: {rows: n}", "schedule: {splits: 8}")


def test_a_library_of_one_promise_has_kernels_of_one_order_of_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It chooses among them by M, and a row would get other bits in another batch."""
    monkeypatch.chdir(tmp_path)
    whole = promising(Path("whole.yaml"), PROMISE)
    parts = promising(Path("parts.yaml"), PROMISE, *PARTS)
    found = refusal(lambda: read([whole, parts]))
    assert (found.path, found.code) == ("whole.yaml, parts.yaml", "library-batch-invariance")
    assert "schedule.splits" in found.message
    plain = promising(Path("plain.yaml"), "tile: {m: 64, n: 64, k: 64}")
    for specs in ([whole, plain], [plain, whole]):
        found = refusal(partial(read, specs))
        assert found.code == "library-batch-invariance"
        assert found.message.startswith("whole.yaml ")
    few = promising(Path("few.yaml"), PROMISE, "tile: {m: 16, n: 64, k: 128}", "mma: {rows: n}")
    assert len(read([whole, few]).specs) == 2
    assert len(read([plain, promising(Path("divided.yaml"), *PARTS)]).specs) == 2


def test_a_table_of_another_order_of_sums_breaks_a_promise_too(tmp_path: Path, tuned: Path) -> None:
    path = promising(tmp_path / "parts.yaml", PROMISE, *PARTS)
    found = refusal(lambda: read([tuned, path]))
    assert found.code == "library-batch-invariance"
    assert "parts.yaml" in found.message
    assert "table.jsonl: " in found.message


def test_kernels_that_no_library_can_have_are_refused() -> None:
    refused = "single_tile", "backward", "gather"
    for name in ("b200_mxfp8", "h100_bf16_int4", *(f"h100_bf16_{each}" for each in refused)):
        found = refusal(partial(read, [SPECS / f"{name}.yaml"]))
        assert (Path(found.path).stem, found.code) == (name, "library-kernel")
    own, blackwell = read([SPECS / WIDE]), read([SPECS / "b200_bf16.yaml"])
    many = read([SPECS / WIDE, SPECS / SQUARE])
    for call, code in (
        (lambda: assemble("h100_bf16", own, library.choose(own)), "module-name"),
        (lambda: assemble("x", blackwell, library.choose(blackwell)), "library-rule"),
        (lambda: library.choose(many, 1), "too-many-kernels"),
    ):
        assert refusal(call).code == code


def test_a_record_whose_spec_is_gone_or_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = shutil.copy(RECORDS / "suites" / "h200_long_k.jsonl", tmp_path)
    monkeypatch.chdir(tmp_path)
    found = refusal(lambda: read([Path(record)]))
    assert found.code == "source-spec"
    assert "benchmarks/suites/specs/h200_bf16.yaml" in found.message


def test_a_kernel_that_was_measured_as_another_module_is_a_warning(tmp_path: Path) -> None:
    stale = table(tmp_path / "stale.jsonl", row(WIDE, (512, 4096, 4096), 1e-5, kernel_sha256="0" * 64))
    (found,) = read([stale]).warnings
    assert (found.code, found.severity) == ("stale-measurements", "warning")


def test_a_library_that_is_not_as_it_was_made_is_named(made: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "tiny"
    assert package.check(place) == ()

    def found() -> list[tuple[str, str]]:
        diagnostics = [each.diagnostic for each in package.check(place)]
        return [(each.path.removeprefix(f"{place}/"), each.code) for each in diagnostics]

    kernel, spec = place / f"{MANY}.py", place / "specs" / f"{MANY}.yaml"
    before = kernel.read_bytes()
    kernel.write_bytes(before + b"\n")
    assert found() == [(f"{MANY}.py", "hand-edited")]
    kernel.unlink()
    assert found() == [(f"{MANY}.py", "missing")]
    kernel.write_bytes(before)
    (place / "h100_old.py").write_text("")
    assert found() == [("h100_old.py", "orphaned")]
    (place / "h100_old.py").unlink()
    # As if another gemmgen had made it: the files are as its manifest says, and not what this one makes.
    manifest = place / package.MANIFEST
    for path, old, new in (
        (kernel, b"D = A @ B", b"D = A * B"),
        (place / "timing.py", b"datasheet", b"paper"),
    ):
        data = path.read_bytes()
        path.write_bytes(data.replace(old, new))
        before_it, now = (hashlib.sha256(each).hexdigest() for each in (data, path.read_bytes()))
        manifest.write_text(manifest.read_text().replace(before_it, now))
    assert found() == [("timing.py", "stale"), (f"{MANY}.py", "stale")]
    assert spec.exists()


def test_what_is_no_library_is_neither_read_nor_overwritten(tuned: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file.txt").write_text("mine")
    assert refusal(lambda: package.check(tmp_path / "mine")).code == "no-library"
    found = read([tuned])
    mine = assemble("mine", found, library.choose(found))
    assert refusal(lambda: package.write(mine, tmp_path)).code == "foreign-file"
    manifest = tmp_path / "mine" / package.MANIFEST
    for text, field in (("{", None), ('{"gemmgen": {"library_format": 3}}', "gemmgen.library_format")):
        manifest.write_text(text)
        told = refusal(lambda: package.check(tmp_path / "mine"))
        assert (Path(told.path).name, told.code, told.field) == ("library.json", "bad-library", field)
    assert refusal(lambda: assemble("torch", found, library.choose(found))).code == "module-name"


# --- the command


def test_the_command_writes_checks_and_refreshes_a_library(
    gemmgen_: Gemmgen, tuned: Path, tmp_path: Path
) -> None:
    out = tmp_path / "libraries"
    code, said, err = gemmgen_("library", "tiny", "--from", tuned, "--out", out, "--no-lower", "--leave-out")
    assert (code, err) == (0, "")
    assert said.startswith(f"wrote {out}/tiny: 3 kernels; 4 problem sizes measured on {CARD}")
    assert {"1.511", "0.250", "4096x4096x4096;", "1.000"} <= {*said.splitlines()[1].split()}
    code, _, err = gemmgen_("library", out / "tiny", "--check")
    assert (code, err) == (0, "")
    (out / "tiny" / "forecast.py").write_text("")
    code, said, err = gemmgen_("library", out / "tiny", "--check")
    assert (code, said) == (1, "")
    assert "error[hand-edited]" in err
    code, said, err = gemmgen_("library", out / "tiny", "--refresh", "--no-lower", "--json")
    assert (code, json.loads(said)["results"]["kernels"]) == (0, [MANY, FEW, SOME])
    assert gemmgen_("library", out / "tiny", "--check")[0] == 0
    # What a library has no more goes with the next one.
    pictures = tmp_path / "pictures"
    one = ("--table", tuned, "--out", out, "--no-lower", "--kernels", 1)
    assert gemmgen_("library", "tiny", *one, "--pictures", pictures).code == 0
    assert [path.name for path in pictures.iterdir()] == [f"{MANY}.svg"]
    assert [path.name for path in (out / "tiny").glob("tiny*.py")] == [f"{MANY}.py"]
    assert gemmgen_("library", "tiny").code == 2


@pytest.mark.check
@pytest.mark.parametrize("record", ["h200_few_rows", "h200_long_k", "h200_many_rows"])
def test_a_record_says_every_decision_of_its_kernels(record: str) -> None:
    """What is recorded is pinned again: as a spec that leaves nothing open."""
    open_spec = load_spec(RECORDS / "suites" / "specs" / "h200_bf16.yaml")
    log = ResultLog.opened(RECORDS / "suites" / f"{record}.jsonl")
    names = [name for name in log.kernels if name.startswith("h200_bf16: ")]
    assert len(names) >= 40 or record == "h200_few_rows"
    for name in names[::7]:
        kernel = pinned.anonymous(source_files.kernel_of(log.kernels[name], open_spec))
        label = pinned.family_label(kernel).replace("swap-AB", "exchanged")  # the words of that record's day
        label = label.replace("reduced in parallel", "added up in parallel")
        assert f"h200_bf16: {label} (" in name
        assert "null" not in pinned.pinned_text(kernel, open_spec.spec, "bf16 matmul")


# --- one operator


@pytest.fixture
def on_the_cpu(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[str]]:
    """The library with kernels that torch computes, and which of them are called for numbers."""
    called: list[str] = []

    @dataclass
    class Host:
        name: str

        def run(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
            if not a.is_meta:
                called.append(self.name)
            return torch.matmul(a, b, out=out)

        def run_as_operator(
            self, *given: torch.Tensor, out: torch.Tensor | None = None
        ) -> torch.Tensor | None:
            d = self.run(*given, out=out)
            return d if out is None else None

    monkeypatch.setattr(made.library, "host_of", Host)
    return made, called


@pytest.mark.check
def test_torch_compile_sees_one_operator_that_chooses_when_it_runs(
    on_the_cpu: tuple[ModuleType, list[str]],
) -> None:
    made, called = on_the_cpu
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return made.matmul(x.relu(), weight.T)

    compiled: Any = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)  # pyright: ignore[reportArgumentType, reportUnknownMemberType]
    weight = torch.randn(4096, 4096).bfloat16()
    for m in (8, 64, 512):
        x = torch.randn(m, 4096).bfloat16()
        assert torch.equal(compiled(x, weight), x.relu() @ weight.T)
    (graph,) = graphs
    assert [node.target for node in graph.graph.nodes if "gemmgen" in str(node.target)] == [made.OPERATOR]
    assert called == [FEW, SOME, MANY]


def test_a_tensor_with_a_dispatch_of_its_own_sees_the_operator(
    on_the_cpu: tuple[ModuleType, list[str]],
) -> None:
    made, called = on_the_cpu
    seen: list[object] = []
    a, b = torch.randn(8, 4096).bfloat16(), torch.randn(64, 4096).bfloat16().T
    expected = made.matmul(a, b)

    class Noting(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: object, *_: object) -> torch.Tensor:
            seen.append(func)
            return expected

    own: Any = a.as_subclass(Noting)
    assert made.matmul(own, b) is expected
    assert (seen, called) == ([made.OPERATOR.default], [FEW])


def test_the_operator_is_one_as_torch_checks_them(on_the_cpu: tuple[ModuleType, list[str]]) -> None:
    made, _ = on_the_cpu
    opcheck: Any = vars(torch.library)["opcheck"]  # of unknown types
    a, b = torch.randn(8, 4096).bfloat16(), torch.randn(4096, 64).bfloat16()
    opcheck(made.OPERATOR.default, (a, b))
    out = torch.empty(8, 64, dtype=torch.bfloat16)
    opcheck(made.OPERATOR.out, (a, b), {"out": out}, test_utils=("test_schema", "test_faketensor"))
    assert made.OPERATOR.out(a, b, out=out) is None
    assert torch.equal(out, a @ b)


# --- for others


def test_tiles_are_told_as_others_read_them(gemmgen_: Gemmgen, tuned: Path, tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    ran = gemmgen_("library", "tiny", "--from", tuned, "--no-lower", "--out", tmp_path, "--vllm", configs)
    assert ran.code == 0
    (path,) = configs.iterdir()
    assert path.name == "N=4096,K=4096,device_name=NVIDIA_H200.json"
    wide = {
        "BLOCK_SIZE_M": 128,
        "BLOCK_SIZE_N": 256,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 16,
        "num_warps": 8,
        "num_stages": 4,
    }
    assert json.loads(path.read_text()) == {
        "64": {**wide, "BLOCK_SIZE_N": 128, "GROUP_SIZE_M": 8, "num_stages": 6},
        "512": wide,
        "4096": wide,
    }
    few = read([table(tmp_path / "few.jsonl", row(ROWS8, (8, 4096, 4096), 1e-5))])
    made = assemble("few", few, library.choose(few))
    assert refusal(lambda: exchange.write_configs(made, configs)).code == "no-kernels"


@pytest.mark.parametrize(
    ("name", "dtype"), [("h200_bf16", torch.bfloat16), ("h200_e4m3", torch.float8_e4m3fn)]
)
def test_a_committed_library_is_exported_for_every_m(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an N that is no whole number of 16-byte units, a view of padded rows comes back."""
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    made = importlib.import_module(name)
    scales: dict[str, torch.Tensor] = {}
    if name == "h200_e4m3":
        scales["tensor_scale"] = torch.empty(1, device="meta")

    class Layer(torch.nn.Module):
        def forward(self, a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return made.matmul(a, weight.T, **scales)

    a = torch.empty(7, 4096, dtype=dtype, device="meta")
    weight = torch.empty(4097, 4096, dtype=dtype, device="meta")
    m = torch.export.Dim("m", min=2, max=8192)
    exported = torch.export.export(Layer(), (a, weight), dynamic_shapes=({0: m}, None))
    (call,) = [node for node in exported.graph.nodes if "gemmgen" in str(node.target)]
    assert call.target == made.OPERATOR.default
    d = made.OPERATOR(a, weight.T, *scales.values())
    assert (d.shape, d.stride(), d.dtype) == ((7, 4097), (4104, 1), torch.bfloat16)
    for wrong, error, found in (
        ((a[0], weight.T), ValueError, r"a must .+ found shape \[4096\]"),
        ((a, weight), ValueError, "b must .+ found 4097"),
        ((a, weight.T.to(torch.float16)), TypeError, "b must .+ found torch.float16"),
    ):
        with pytest.raises(error, match=f"^{found}$"):
            made.OPERATOR(*wrong, *scales.values())
