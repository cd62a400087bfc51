"""What a spec file may say, what the loader answers when it says something else, and where it points."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import told
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from modules import SPECS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel
from work import calls_of

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.fix import use
from gemmgen.plan.rule import Violation
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec import Spec, SpecFile, load_spec, parse_recorded
from gemmgen.spec.diagnostics import Code
from gemmgen.spec.hints import STREAM_K
from gemmgen.spec.model import stated
from gemmgen.spec.module_names import module_name_problem
from gemmgen.spec.reading import MAX_BYTES
from gemmgen.spec.spelling import before, data_before, today, without_gone
from gemmgen.spec.table_names import OneOf

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
INVALID = sorted((ROOT / "tests/invalid/load").glob("*.yaml"))
MINIMAL = """\
title: bf16 matmul
target: h100
operands:
  a: {dtype: bf16}
  b: {dtype: bf16}
  d: {dtype: bf16}
"""
FULL = f"""\
{MINIMAL}accumulator: fp32
tile: {{m: 128, n: 256, k: 64}}
cluster: {{m: 1, n: 1}}
buffering: {{stages: 4, outstanding_mmas: 0, epilogue: 1}}
warp_specialization:
  kind: cooperative
  consumers: 2
  registers: {{producer: 40, consumer: 232}}
schedule: {{kind: persistent, order: snake, width: 16}}
occupancy: 1
mma: {{n: 256}}
warps: {{m: 4, n: 1}}
epilogue: {{alpha: 0.5, ops: [relu, row_bias], subtile_n: 128}}
check: {{shapes: [[256, 512, 384], [208, 416, 304]]}}
bench:
  shapes:
    - [8192, 8192, 8192]  # the largest
    - [4096, 4096, 4096]
"""
WHOLE_FILE_CODES = {code for code in get_args(Code) if code.startswith("file-")} | {"module-name"}

settings = hypothesis_settings(deadline=None, max_examples=200, derandomize=True)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that a path in a diagnostic is the bare file name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_text(text: str | bytes, name: str = "x.yaml") -> SpecFile:
    path = Path(name)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_spec(path)


def complaints(path: str | Path) -> str:
    with pytest.raises(GemmgenError) as caught:
        load_spec(Path(path))
    return str(caught.value)


# Files with a mistake in their text


@pytest.mark.parametrize("spec", INVALID, ids=lambda spec: spec.stem)
def test_an_invalid_file_gets_the_diagnostics_of_its_folder(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(GemmgenError) as caught:
        load_spec(spec.relative_to(ROOT))
    assert told.data_of(caught.value.diagnostics) == told.committed("load")[spec.stem]
    if spec.stem in told.texts("load"):
        assert f"{caught.value}\n" == spec.with_suffix(".txt").read_text(encoding="utf-8")


def test_every_diagnostic_has_its_file() -> None:
    assert set(told.committed("load")) == {spec.stem for spec in INVALID}


@pytest.mark.parametrize(
    ("field", "word", "meant"),
    [
        ("operands.a.dtype", "float16", "fp16"),
        ("operands.a.dtype", "half", "fp16"),
        ("operands.a.dtype", "bfloat16", "bf16"),
        ("operands.a.dtype", "torch.bfloat16", "bf16"),
        ("operands.a.dtype", "float32", "tf32"),  # what the tensor cores make of it
        ("operands.a.dtype", "fp32", "tf32"),
        ("operands.a.dtype", "fp8", "e4m3 or e5m2"),
        ("operands.a.dtype", "float8_e4m3fn", "e4m3"),
        ("operands.b.dtype", "float8_e5m2", "e5m2"),
        ("operands.b.dtype", "i8", "int8"),
        ("operands.b.dtype", "s8", "int8"),
        ("operands.c.dtype", "float32", "fp32"),
        ("operands.d.dtype", "tf32", "fp32"),
        ("operands.d.dtype", "i32", "int32"),
        ("operands.d.dtype", "FP16", "fp16"),
        ("operands.a.major", "m", "mn"),
        ("operands.b.major", "n", "mn"),
        ("operands.b.major", "K", "k"),
        ("accumulator", "float", "fp32"),
        ("warp_specialization.kind", "ping-pong", "ping_pong"),
        ("warp_specialization.kind", "pingpong", "ping_pong"),
        ("schedule.kind", "single-tile", "single_tile"),
        ("schedule.order", "planar snake", "snake"),
        ("epilogue.ops.0", "gelu", "gelu_tanh or gelu_erf"),
        ("epilogue.ops.0", "bias", "row_bias or column_bias"),
    ],
)
def test_a_word_of_other_libraries_gets_the_one_that_is_meant(
    desk: Path, field: str, word: str, meant: str
) -> None:
    section = spec = json.loads(json.dumps(load_text(MINIMAL).spec.model_dump(exclude_none=True)))
    *path, name = field.split(".")
    spec["epilogue"]["ops"] = ["relu"]
    spec["operands"]["c"] = {"dtype": "bf16"}
    for step in path:
        section = section[step]
    section[int(name) if name.isdecimal() else name] = word
    Path("x.yaml").write_text(json.dumps(spec))
    assert complaints("x.yaml").endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("target: sm_90a", "did you mean h100 or h200?"),
        ("target: hopper", "did you mean h100 or h200?"),
        ("target: sm_100", "did you mean b200?"),
        ("target: a100", "; sm_80 has neither wgmma nor tcgen05, which the kernels are made of"),
        ("target: rtx4090", "; sm_89 has neither wgmma nor tcgen05, which the kernels are made of"),
        ("operands: {b: {dtype: nf4}}", "; nf4 is not supported"),
        ("operands: {b: {dtype: uint4}}", "; did you mean int4?"),
        (
            "operands: {b: {dtype: nvfp4}}",
            "; nvfp4 is a format of scales: dtype: e2m1, scale: {format: nvfp4} on Hopper or Blackwell",
        ),
        (
            "operands: {a: {dtype: mxfp8}}",
            "dtype: e4m3, scale: {format: mxfp8} on Blackwell or {format: ue8m0_1x32} on Hopper",
        ),
        (
            "operands: {b: {dtype: int4, scale: {format: fp16_1x256}}}",
            "; did you mean fp16_1x128? If so, the scale of 256 elements of K is repeated for 2 blocks",
        ),
        (
            "operands: {b: {dtype: int4, scale: {format: bf16_zero_1x32}}}",
            "; scales that are called bf16_zero_1x… are for blocks of 64 or 128 elements of K",
        ),
        ("operands: {b: {dtype: int4, scale: {format: BF16-1x64}}}", "; did you mean bf16_1x64?"),
        ("operands: {d: {dtype: int8}}", "; int8 is a type of other operands only"),
        ("operands: {a: {swizzle: 128B}}", "; write 128"),
        (
            "epilogue: {ops: [swiglu]}",
            "; it is epilogue.accumulators: [gate, up] with epilogue.d: silu(gate) * up",
        ),
        ('epilogue: {d: "geglu(acc)"}', "with epilogue.d: gelu_erf(gate) * up or gelu_tanh(gate) * up"),
        ('epilogue: {accumulators: [one, two], d: "swiglu(one, two)"}', "; write silu(one) * two"),
        ("epilogue: {d: silu(gate) * up}", "; two sums need names, as epilogue.accumulators: [gate, up]"),
        (
            "epilogue: {accumulators: [one, two], d: silu(one * two}",
            "expected the sums one and two, tensors, numbers, +, -, *, brackets and operations",
        ),
        (
            "epilogue: {ops: [sigmoid]}",
            "; an activation is added by a row and a template, as docs/extending.md says",
        ),
        ("epilogue: {ops: [{relu: true}]}", "relu has no parameters; write relu alone"),
        ("epilogue: {ops: [{leaky_relu: {alpha: 1}}]}", 'unknown key "alpha": it is slope'),
        ("schedule: {kind: stream_k}", f"; {STREAM_K}"),
        ("schedule: {kind: split-k}", "; split-K is schedule.splits"),
        ("stream_k: true", STREAM_K),
        ("tile_m: 128", 'unknown key "tile_m": it is tile.m'),
        ("misaligned: copy", 'unknown key "misaligned": it is operands.misaligned'),
        ("schedule: {early: b}", 'unknown key "early": it is dependent_launch.early'),
        ("experts: 8", "experts are groups of rows: groups: {kind: m_offsets, count: …}"),
        ("batch: 8", "batches are groups: {kind: batched, count: …}; a batch that shares B is folded into M"),
        ("tiles: {m: 128}", 'unknown key "tiles": did you mean tile?'),
    ],
)
def test_a_hint_names_the_field_that_is_meant_and_never_other_mathematics(
    desk: Path, text: str, end: str
) -> None:
    section, _, _ = text.partition(":")
    kept = [line for line in MINIMAL.splitlines() if not line.startswith(section)]
    if section == "operands":
        kept = [line for line in kept if not line.startswith("  ")]
    Path("x.yaml").write_text("\n".join([*kept, text]))
    assert any(line.endswith(end) for line in complaints("x.yaml").splitlines())


# Files that are wrong before, or apart from, their text: they cannot be committed, so each is made here.


def make_10_megabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 10_000_000)


def make_a_file_that_cannot_be_read(path: Path) -> None:
    # The kernel gives this regular file a size of 0 and refuses to read it at offset 0, even to root.
    path.symlink_to("/proc/self/mem")


def containing(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


UNCOMMITTED: list[tuple[str, Callable[[Path], object], str]] = [
    ("a.yaml", lambda path: None, "a.yaml: error[file-missing]: there is no such file"),
    (
        "h100_bf61.yaml",
        lambda path: (path.parent / "h100_bf16.yaml").touch(),
        "h100_bf61.yaml: error[file-missing]: there is no such file; did you mean h100_bf16.yaml?",
    ),
    (
        "h100_bf16.yml",
        lambda path: (path.parent / "h100_bf16.yaml").touch(),
        "h100_bf16.yml: error[file-missing]: there is no such file; did you mean h100_bf16.yaml?",
    ),
    (
        "b.yaml",  # alike in the suffix only
        lambda path: (path.parent / "a.yaml").touch(),
        "b.yaml: error[file-missing]: there is no such file",
    ),
    (
        "h100_fp8.yaml",  # another spec, not another spelling
        lambda path: (path.parent / "h100_fp16.yaml").touch(),
        "h100_fp8.yaml: error[file-missing]: there is no such file",
    ),
    ("no/such/a.yaml", lambda path: None, "no/such/a.yaml: error[file-missing]: there is no such file"),
    (
        "file/a.yaml",
        lambda path: path.parent.touch(),
        "file/a.yaml: error[file-missing]: there is no such file",
    ),
    ("a\0.yaml", lambda path: None, r"a\x00.yaml: error[file-missing]: there is no such file"),
    ("a.yaml", Path.mkdir, "a.yaml: error[file-type]: this is a directory, a spec is a file"),
    (
        "a.yaml",
        os.mkfifo,
        "a.yaml: error[file-type]: this is a pipe, a socket or a device, a spec is a regular file",
    ),
    (
        "a.yaml",
        lambda path: path.symlink_to(os.devnull),
        "a.yaml: error[file-type]: this is a pipe, a socket or a device, a spec is a regular file",
    ),
    ("a.json", Path.touch, "a.json: error[file-type]: the name of a spec ends in .yaml or .yml"),
    ("a.YAML", Path.touch, "a.YAML: error[file-type]: the name of a spec ends in .yaml or .yml"),
    (".yaml", Path.touch, ".yaml: error[file-type]: the name of a spec ends in .yaml or .yml"),
    (
        "a.yaml",
        make_10_megabytes,
        "a.yaml: error[file-size]: 10,000,000 bytes, the limit for a spec is 65,536",
    ),
    (
        "a.yaml",
        make_a_file_that_cannot_be_read,
        "a.yaml: error[file-unreadable]: cannot be read: Input/output error",
    ),
    (
        "a.yaml",
        lambda path: path.symlink_to(path),
        "a.yaml: error[file-unreadable]: cannot be read: Too many levels of symbolic links",
    ),
    (
        "a.yaml",
        containing(b"\x7fELF\x02\x01\x01\x00"),
        "a.yaml:1:1: error[file-encoding]: the character U+007F is not allowed in a spec; remove it",
    ),
    (
        "a.yaml",
        containing("title: bf16 matmul".encode("utf-16")),
        "a.yaml:1:1: error[file-encoding]: the byte 0xff is not UTF-8; save the file as UTF-8 text",
    ),
    (
        "a.yaml",
        containing(b"# one\r\n# two\r# \xc3\xa9t\xe9\n"),
        "a.yaml:3:5: error[file-encoding]: the byte 0xe9 is not UTF-8; save the file as UTF-8 text",
    ),
    (
        "a.yaml",
        containing(b"\xef\xbb\xbf# \xff"),
        "a.yaml:1:3: error[file-encoding]: the byte 0xff is not UTF-8; save the file as UTF-8 text",
    ),
    (
        "a.yaml",
        containing(b"title: a\ntarget: h\x00100\n"),
        "a.yaml:2:10: error[file-encoding]: the character U+0000 is not allowed in a spec; remove it",
    ),
    (
        "a.yaml",
        containing("title: a\u2028target: h100\n".encode()),
        "a.yaml:1:9: error[file-encoding]: the character U+2028 is not allowed in a spec; remove it",
    ),
]


@pytest.mark.parametrize(("name", "make", "expected"), UNCOMMITTED)
def test_what_is_not_a_file_of_text_is_refused_unread(
    desk: Path, name: str, make: Callable[[Path], object], expected: str
) -> None:
    make(desk / name)
    assert complaints(name) == expected


def test_a_file_without_permission_is_refused_without_its_absolute_path(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: Any, **options: Any) -> None:  # chmod would not stop root
        raise PermissionError(13, "Permission denied", str(desk / path))

    Path("a.yaml").touch()
    monkeypatch.setattr(Path, "open", refuse)
    assert complaints("a.yaml") == "a.yaml: error[file-unreadable]: cannot be read: Permission denied"


def test_a_file_that_grew_after_its_size_was_read_is_still_bounded(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty.yaml").touch()
    size_of_empty = Path("empty.yaml").stat()
    Path("a.yaml").write_bytes(b"#" * (MAX_BYTES + 1))

    def report_empty(path: Path) -> os.stat_result:
        return size_of_empty

    monkeypatch.setattr(Path, "stat", report_empty)
    assert complaints("a.yaml").startswith("a.yaml: error[file-size]: ")


def test_a_file_of_exactly_the_limit_is_read(desk: Path) -> None:
    padding = "#" * (MAX_BYTES - len(MINIMAL) - 1) + "\n"
    assert load_text(MINIMAL + padding).stem == "x"
    Path("x.yaml").write_text(MINIMAL + "#" + padding)
    assert "file-size" in complaints("x.yaml")


@pytest.mark.parametrize(
    ("stem", "suggestion"),
    [
        ("class", "matmul_class"),
        ("None", "matmul_None"),
        ("torch", "matmul_torch"),
        ("triton", "matmul_triton"),
        ("types", "matmul_types"),
        ("__init__", "init"),
        ("h100-bf16", "h100_bf16"),
        ("8192", "matmul_8192"),
        ("for-", "matmul_for"),
        ("größe", "gr_e"),
        ("矩阵", "matmul"),
        ("x; import os", "x_import_os"),
    ],
)
def test_a_stem_that_cannot_name_a_module_is_refused_with_one_that_can(
    desk: Path, stem: str, suggestion: str
) -> None:
    path = Path(f"{stem}.yaml")
    path.write_text(MINIMAL)
    found = complaints(path)
    assert found.startswith(f"{path}: error[module-name]: ")
    assert found.endswith(f" {suggestion}.yaml")


@pytest.mark.parametrize(
    "stem",
    ["yaml", "pytest", "optuna", "jinja2", "nvidia", "pip", "numpy", "pydantic", "gluonsim", "dis", "test_x"],
)
def test_a_stem_that_would_hide_an_installed_module_is_refused(desk: Path, stem: str) -> None:
    Path(f"{stem}.yaml").write_text(MINIMAL)
    assert complaints(f"{stem}.yaml").startswith(f"{stem}.yaml: error[module-name]: ")


def test_every_top_level_module_of_a_requirement_is_a_taken_name() -> None:
    """Distributions that pyproject.toml names, of those that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    wanted = {canonicalize_name(Requirement(line).name) for line in lines}
    tops = {
        top
        for top, names in packages_distributions().items()
        if top.isidentifier() and wanted & {canonicalize_name(name) for name in names}
    }
    assert {"torch", "triton", "jinja2", "optuna"} <= tops
    assert {top for top in tops if module_name_problem(top) is None} == set()


@pytest.mark.parametrize("stem", ["h100_bf16", "match", "_private", "x", "Torch2"])
def test_any_other_identifier_is_a_stem(desk: Path, stem: str) -> None:
    assert load_text(MINIMAL, f"{stem}.yml").stem == stem


def test_every_code_is_shown_by_a_case() -> None:
    shown = {each["code"] for found in told.committed("load").values() for each in found}
    for _, _, expected in UNCOMMITTED:
        shown |= set(re.findall(r"error\[([\w-]+)\]", expected))
    assert shown == set(get_args(Code))


# What is valid


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_a_committed_spec_loads_with_its_path_stem_and_hash(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    relative = spec.relative_to(ROOT)
    loaded = load_spec(relative)
    assert (loaded.path, loaded.stem) == (relative.as_posix(), spec.stem)
    assert loaded.sha256 == hashlib.sha256(spec.read_bytes()).hexdigest()


def test_null_means_the_same_as_leaving_a_field_out(desk: Path) -> None:
    nulls = "tile: null\ncluster: ~\nbuffering:\nschedule: {kind: null, width: }\ncheck: NULL\n"
    assert load_text(MINIMAL + nulls).spec == load_text(MINIMAL).spec


@pytest.mark.parametrize(("rows", "swap_ab"), [("n", True), ("m", False)])
def test_the_earlier_name_of_swap_ab_means_the_same(desk: Path, rows: str, swap_ab: bool) -> None:
    earlier = load_text(f"{MINIMAL}mma: {{n: 8, rows: {rows}}}\n")
    today = load_text(f"{MINIMAL}mma: {{n: 8, swap_ab: {str(swap_ab).lower()}}}\n")
    assert earlier.spec == today.spec
    assert earlier.spec.mma.swap_ab is swap_ab
    assert stated(earlier.spec)["mma"] == {"n": 8, "swap_ab": swap_ab}
    assert earlier.locate("mma.swap_ab") == earlier.locate("mma.rows") == (7, 19)


def test_search_knows_the_earlier_name_of_swap_ab_too(desk: Path) -> None:
    found = load_text(f"{MINIMAL}search: {{mma.rows: [n, m]}}\n")
    assert found.spec.search == {"mma.swap_ab": (True, False)}
    assert found.locate("search.mma.swap_ab") == (7, 20)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("mma: {rows: n, swap_ab: true}", "7:6: error[wrong-type] mma: "),
        ("search: {mma.rows: [n], mma.swap_ab: [true]}", "7:9: error[wrong-type] search: "),
        ("mma: {rows: k}", "7:13: error[not-a-choice] mma.rows: expected m or n, "),
        ("mma: {rows: {m: 1}}", "7:13: error[not-a-choice] mma.rows: expected m or n, "),
        ("mma: {rows: [n]}", "7:13: error[not-a-choice] mma.rows: expected m or n, "),
        ("mma: {swap_ab: n}", "7:16: error[wrong-type] mma.swap_ab: "),
        ("search: {tile.n: [1.5]}", "7:9: error[wrong-type] search: "),
    ],
)
def test_a_wrong_swap_ab_is_told_by_the_name_in_the_file(desk: Path, more: str, told: str) -> None:
    Path("x.yaml").write_text(f"{MINIMAL}{more}\n")
    assert told in complaints("x.yaml")


def test_digests_keep_the_earlier_name_of_swap_ab(desk: Path) -> None:
    """Tuned kernels and the compiler's verdicts are found by digests that were made of it."""
    spec = load_text(f"{MINIMAL}mma: {{swap_ab: true, n: 8}}\n").spec
    assert data_before(stated(spec))["mma"] == {"rows": "n", "n": 8}
    searched = load_text(f"{MINIMAL}search: {{mma.swap_ab: [false, true]}}\n").spec
    assert data_before(stated(searched))["search"] == {"mma.rows": ["m", "n"]}
    pins = {"mma.rows": "n", "tile.n": 64}
    assert today(pins) == {"mma.swap_ab": True, "tile.n": 64}
    assert before(today(pins)) == pins


def test_a_record_may_state_a_field_that_left_with_the_value_of_every_kernel(desk: Path) -> None:
    """A spec may not, and stream-K is no kernel of today: a record of it is refused."""
    whole, divided = (
        f"{MINIMAL}schedule: {{splits: 2, last_wave: {word}}}\n" for word in ("whole", "stream_k")
    )
    assert parse_recorded(whole, "x").spec == load_text(f"{MINIMAL}schedule: {{splits: 2}}\n").spec
    with pytest.raises(GemmgenError, match=r"unknown-key.*schedule\.splits"):
        parse_recorded(divided, "x")
    with pytest.raises(GemmgenError, match=r"unknown-key.*schedule\.splits"):
        load_text(whole)
    pins = {"tile.n": 64, "schedule.last_wave": "whole"}
    assert without_gone(pins) == {"tile.n": 64}
    assert without_gone({**pins, "schedule.last_wave": "stream_k"}) != {"tile.n": 64}


@pytest.mark.parametrize("numeral", ["128", "+128", "0128", "0x80", "0o200"])
def test_whole_numbers_are_those_of_yaml_1_2(desk: Path, numeral: str) -> None:
    assert load_text(f"{MINIMAL}tile: {{m: {numeral}}}\n").spec.tile.m == 128


@pytest.mark.parametrize("title", ["2024-05-01", "yes", "1:30", "0b11", "1_000", "<<", "a: b", "# a"])
def test_text_that_other_yaml_versions_would_convert_stays_text(desk: Path, title: str) -> None:
    written = f'"{title}"' if title in ("a: b", "# a") else title
    assert load_text(MINIMAL.replace("bf16 matmul", written)).spec.title == title


@pytest.mark.parametrize(
    "title", ["x" * 100, "C = A · B, ≤ 50 %", "矩阵乘法", "# not a comment", "Qwen3's up projection", "'"]
)
def test_a_title_is_any_printable_line_without_double_quotes_backslashes_and_braces(
    desk: Path, title: str
) -> None:
    assert load_text(MINIMAL.replace("bf16 matmul", f'"{title}"')).spec.title == title


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_line_breaks_and_a_byte_order_mark_change_neither_spec_nor_positions(
    desk: Path, prefix: bytes, line_break: str
) -> None:
    reference = load_text(FULL)
    variant = load_text(prefix + FULL.replace("\n", line_break).encode())
    assert variant.spec == reference.spec
    assert variant.positions == reference.positions
    assert variant.key_positions == reference.key_positions


def test_document_markers_around_the_one_document_are_fine(desk: Path) -> None:
    assert load_text(f"---\n{MINIMAL}...\n").spec == load_text(MINIMAL).spec


# What is documented


def leaves(model: type[BaseModel], section: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every field of a section that is none itself, with the words among which it chooses."""
    for name, field in model.model_fields.items():
        alternatives = () if get_origin(field.annotation) is tuple else get_args(field.annotation)
        kinds = (field.annotation, *alternatives)
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for inner in sections:
            yield from leaves(inner, f"{section}{name}.")
        if not sections:
            choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
            metadata = (
                *field.metadata,
                *(found for kind in kinds for found in getattr(kind, "__metadata__", ())),
            )
            tables = [found for found in metadata if isinstance(found, OneOf)]
            yield (
                f"{section}{name}",
                (*map(str, choices), *(word for table in tables for word in table.names)),
            )


DOCUMENT = (ROOT / "docs/spec.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("field", "choices"), [pytest.param(*leaf, id=leaf[0]) for leaf in leaves(Spec)])
def test_a_field_and_what_it_can_be_are_documented(field: str, choices: tuple[str, ...]) -> None:
    (row,) = (line for line in DOCUMENT.splitlines() if re.match(rf"\| [^|]*`{re.escape(field)}`", line))
    value = row.split("|")[2]
    assert set(choices) <= set(re.findall(r"`([^`]+)`", value)) or set(choices) == {"0", "1"}


def test_every_operation_of_the_epilogue_is_documented() -> None:
    page = (ROOT / "docs/spec/epilogue.md").read_text(encoding="utf-8")
    assert set(OPERATIONS) <= set(re.findall(r"`([^`]+)`", page))


def test_no_field_is_documented_that_there_is_not() -> None:
    named = {
        field
        for row in re.findall(r"^\| (`.*?) \|", DOCUMENT.partition("## ")[0], re.MULTILINE)
        for field in re.findall(r"`([^`]+)`", row)
    }
    assert named == {field for field, _ in leaves(Spec)}


# Where things are

PLACED = """\
title: bf16 matmul
target: h100
operands:
  a: {dtype: bf16}
  b: {dtype: bf16}
  d: {dtype: bf16}
tile: {m: 128}
warp_specialization:
  registers:
    producer: 40
schedule: null
check: {shapes: [[256, 512, 384], [208, 416, 304]]}
"""


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("title", (1, 8)),
        ("tile", (7, 7)),
        ("tile.m", (7, 11)),
        ("warp_specialization", (9, 3)),  # a block starts at its first key
        ("warp_specialization.registers.producer", (10, 15)),
        ("check.shapes.0", (12, 18)),
        ("check.shapes.1.2", (12, 46)),
        ("schedule", (11, 11)),
    ],
)
def test_a_field_in_the_file_is_where_its_value_starts(
    desk: Path, field: str, place: tuple[int, int]
) -> None:
    loaded = load_text(PLACED)
    assert loaded.positions[field] == place
    assert loaded.locate(field) == place


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("tile.n", (7, 1)),
        ("warp_specialization.registers.consumer", (9, 3)),
        ("warp_specialization.kind", (8, 1)),
        ("schedule.order", (11, 1)),
        ("check.shapes.7.0", (12, 9)),
        ("check.shapes.0.3", (12, 18)),
        ("buffering.stages", (1, 1)),
        ("epilogue", (1, 1)),
        ("", (None, None)),
    ],
)
def test_a_field_left_out_is_at_the_key_of_the_nearest_section(
    desk: Path, field: str, place: tuple[int, int] | tuple[None, None]
) -> None:
    assert load_text(PLACED).locate(field) == place


def test_every_position_is_where_the_text_says_it_is(desk: Path) -> None:
    loaded = load_text(FULL)
    lines = FULL.splitlines()
    for field, (line, column) in loaded.key_positions.items():
        name = field.rpartition(".")[2]
        if not name.isdecimal():
            assert lines[line - 1][column - 1 :].startswith(f"{name}:")


def test_a_spec_file_survives_pickling(desk: Path) -> None:
    loaded = load_text(FULL)
    assert pickle.loads(pickle.dumps(loaded)) == loaded


# What no file can do


def test_a_loaded_spec_makes_its_request_once(desk: Path) -> None:
    source = load_text(FULL)
    assert source.request is source.request
    assert pickle.loads(pickle.dumps(source)).request == source.request


def test_a_spec_that_a_program_made_is_called_by_its_title(desk: Path) -> None:
    source = load_text(FULL)
    made = SpecFile.of(source.spec)
    assert made.request == source.request
    shown = Violation("a-rule", "tile.m", "7", "that is odd", use(8)).diagnosed(made)
    assert shown.path == source.spec.title


def test_a_spec_loads_without_much_work(desk: Path) -> None:
    load_text(FULL)
    assert calls_of(lambda: load_spec(Path("x.yaml"))) < 40_000


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "a: [", "{[: "])
def test_64_kib_of_nesting_are_refused_at_the_first_level_too_many(desk: Path, opening: str) -> None:
    Path("x.yaml").write_text(opening * (MAX_BYTES // len(opening)))
    assert re.search(r"error\[yaml-(depth|syntax)\]", complaints("x.yaml").splitlines()[-1])


def diagnostics_of(path: Path) -> tuple[Diagnostic, ...]:
    """Return what is wrong with a file; anything but GemmgenError passes through and fails the test."""
    try:
        load_spec(path)
    except GemmgenError as error:
        return error.diagnostics
    return ()


def check_places(path: Path) -> None:
    """Every diagnostic is one line of text about an existing place, and they are in the order of the file."""
    diagnostics = diagnostics_of(path)
    lines = re.split("\r\n|\r|\n", path.read_bytes().decode("utf-8-sig", errors="replace"))
    for found in diagnostics:
        assert found.path == path.as_posix()
        assert found.code in get_args(Code)
        assert str(found).isprintable()
        if found.line is None or found.column is None:
            assert found.code in WHOLE_FILE_CODES
        else:
            assert 1 <= found.line <= len(lines)
            assert 1 <= found.column <= len(lines[found.line - 1]) + 1
    places = [(found.line or 0, found.column or 0) for found in diagnostics]
    assert places == sorted(places)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("specs") / "x.yaml"


@pytest.mark.check
@settings
@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_arbitrary_bytes_are_reported_within_the_file(scratch: Path, data: bytes) -> None:
    scratch.write_bytes(data)
    check_places(scratch)


INDICATORS = st.sampled_from("-?:,[]{}#&*!|>'\"%@`=~.\\ \n\r\t\0\x85\ufeff")
PHRASES = st.sampled_from(("---", "...", "&a ", "*a", "!!int ", "%YAML ", "<<: ", "? ", "|2-", "\n- ", "4.0"))
ESCAPES = st.sampled_from((r"\x41", r"\ud800", r"\U0001F600", r"\UFFFFFFFF"))


@pytest.mark.check
@settings
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(FULL)),
            st.integers(0, 12),
            INDICATORS | PHRASES | ESCAPES | st.text(max_size=4),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_mutated_spec_loads_or_is_reported_within_the_file(
    scratch: Path, edits: list[tuple[int, int, str]]
) -> None:
    text = FULL
    for start, removed, inserted in edits:
        text = text[:start] + inserted + text[start + removed :]
    scratch.write_bytes(text.encode("utf-8", errors="replace"))
    check_places(scratch)


LEAVES: list[tuple[str | int, ...]] = [
    ("title",),
    ("target",),
    ("operands",),
    ("operands", "a"),
    ("operands", "a", "source"),
    ("operands", "b", "swizzle"),
    ("operands", "c"),
    ("operands", "d", "dtype"),
    ("tile",),
    ("tile", "m"),
    ("buffering", "outstanding_mmas"),
    ("warp_specialization", "registers", "producer"),
    ("schedule", "order"),
    ("occupancy",),
    ("mma", "promote_k"),
    ("epilogue", "alpha"),
    ("epilogue", "ops"),
    ("epilogue", "ops", 0),
    ("check",),
    ("check", "shapes"),
    ("check", "shapes", 0),
    ("check", "shapes", 0, 2),
]
VALUES: st.SearchStrategy[object] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))  # JSON has no others
    | st.sampled_from([0, 1, 1.0, 2**63, "1", "bf16"])
    | st.builds(list[object])
    | st.builds(dict[str, object])
)


@pytest.mark.check
@settings
@given(leaf=st.sampled_from(LEAVES), value=VALUES)
def test_one_bad_field_gives_at_most_one_diagnostic(
    scratch: Path, leaf: tuple[str | int, ...], value: object
) -> None:
    scratch.write_text(FULL)
    spec: Any = load_spec(scratch).spec.model_dump(mode="json")
    section = spec
    for step in leaf[:-1]:
        section = section[step]
    section[leaf[-1]] = value
    scratch.write_text(json.dumps(spec).replace("NaN", ".nan").replace("Infinity", ".inf"))
    fields = [found.field or "" for found in diagnostics_of(scratch)]
    dotted = ".".join(map(str, leaf))
    assert len(fields) <= 1 or value == {}  # an empty section lacks each of its required fields
    assert all(field == dotted or field.startswith(f"{dotted}.") for field in fields)
