"""Libraries of kernels of groups: a kernel is chosen by the rows of a group, and called as its module is."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import always
from hopper import hopper
from made_library import OnTheCpu, imported_library, made_library, noting, tuned_row
from modules import ROOT, libraries_folder, spec_file
from simulated import on_a_gpu, signs, simulated_file
from told import refusal
from torch import Tensor

from gemmgen import library
from gemmgen.integrations import GroupedMM
from gemmgen.library import exchange, package
from gemmgen.library.assemble import assemble
from gemmgen.library.pinned import anonymous, pinned_text
from gemmgen.library.sources import read
from gemmgen.library.texts import rendered
from gemmgen.planner import family_for, plan_spec
from gemmgen.problem.groups import GroupKind, Groups
from gemmgen.product import make
from gemmgen.spec import load_spec, parse_spec

SPECS = ROOT / "specs"
CARD = "NVIDIA H200"
NAME = "h200_bf16_experts"
EXPERTS = ROOT / "libraries" / NAME
TIMED = ROOT / "benchmarks" / "suites" / "specs"
"""The folder of the specs that the record of the library timed."""
SOURCES = [ROOT / "benchmarks" / "suites" / "h200_experts.jsonl"]
"""The record of the committed library, which chose its kernels."""
CHOSEN = sorted((EXPERTS / "specs").glob("*.yaml"))
"""The specs of the chosen kernels."""
FEW, SOME, MANY = "experts_decode_8x64x256", "experts_decode_32x128x128", "experts_prefill_64x256x64"
BF16, INT = torch.bfloat16, torch.int32
KINDS: dict[GroupKind, str] = {
    "m_offsets": "h100_bf16_grouped",
    "m_masked": "h100_bf16_masked",
    "batched": "h100_bf16_batched",
    "k_offsets": "h100_bf16_wgrad",
}
"""A spec of each kind of groups."""
any_torch: Any = torch


@pytest.fixture
def experts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The committed library."""
    return imported_library(NAME, libraries_folder(), monkeypatch)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library of measured kernels: of 1, 8 and 64 rows of a group in the mean."""
    measured = [(FEW, 1, 6e-5), (SOME, 8, 1e-4), (MANY, 64, 1.5e-4)]
    rows = [
        tuned_row(TIMED / f"{stem}.yaml", (mean * 128, 2048, 768), seconds, baseline_seconds=2e-4)
        for stem, mean, seconds in measured
    ]
    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps(each) + "\n" for each in rows))
    for stem, *_ in measured:
        shutil.copy(TIMED / f"{stem}.yaml", tmp_path)
    found = read([table])
    assert found.warnings == ()
    package.write(assemble("tuned_experts", found, library.choose(found)), tmp_path)
    return imported_library("tuned_experts", tmp_path, monkeypatch)


# --- the groups of another problem


@pytest.mark.parametrize(
    ("kind", "shape", "count", "mean_rows", "found"),
    [
        ("m_offsets", (64, 512, 256), 8, None, (256, 512, 256)),
        ("m_offsets", (1, 512, 256), 64, None, (1, 512, 256)),
        ("m_offsets", (256, 512, 256), 32, None, (256, 512, 256)),
        ("batched", (64, 512, 256), 8, None, (64, 512, 256)),
        ("m_masked", (64, 512, 256), 8, None, (64, 512, 256)),
        ("k_offsets", (64, 512, 256), 8, None, (64, 512, 1024)),
    ],
)
def test_a_problem_of_other_groups_has_groups_of_its_size_in_the_planned_number(
    kind: GroupKind,
    shape: tuple[int, int, int],
    count: int,
    mean_rows: int | None,
    found: tuple[int, int, int],
) -> None:
    assert Groups(kind, 32).resized(shape, count, mean_rows) == found


@pytest.mark.parametrize("count", [1, 2, 32, 128])
@pytest.mark.parametrize("mean", [1, 7, 300])
def test_masked_groups_of_a_mean_have_the_m_at_which_planned_ones_have_that_mean(
    count: int, mean: int
) -> None:
    groups = Groups("m_masked", count)
    m, n, k = groups.resized((4096, 512, 256), 8, mean)
    assert (n, k) == (512, 256)
    # M and the rows of each group are rounded, by less than one row.
    assert abs(sum(groups.rows_of_each(m)) / count - mean) < 1


def test_a_problem_without_groups_or_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 group or more, and 1 row in the mean, found 0$"):
        Groups("m_offsets", 8).resized((1, 1, 1), 0)
    with pytest.raises(ValueError, match=r"found 8 with 0 rows$"):
        Groups("m_masked", 8).resized((1, 1, 1), 8, 0)


# --- the committed library


def test_the_committed_library_follows_from_its_specs_byte_for_byte() -> None:
    found = read(SOURCES)
    files = rendered(assemble(NAME, found, library.choose(found)))
    for file in ("library.json", "table.json", *(f"specs/{path.name}" for path in CHOSEN)):
        assert (EXPERTS / file).read_bytes() == files[file].encode(), file
    assert package.check(libraries_folder() / NAME) == ()


@pytest.mark.parametrize(("n", "k"), [(1536, 2048), (2048, 768)])
def test_decode_gets_swap_ab_and_prefill_gets_tiles_of_64_rows_and_more(
    experts: ModuleType, n: int, k: int
) -> None:
    def tile_of(tokens: int) -> tuple[bool, int]:
        plan = hopper(make(EXPERTS / "specs" / f"{experts.choose(8 * tokens, n, k).kernel}.yaml").plan)
        return plan.swap_ab, plan.cta_tile_m

    assert all(swap_ab and rows <= 32 for swap_ab, rows in map(tile_of, (1, 4, 8)))
    assert all(not swap_ab and rows >= 64 for swap_ab, rows in map(tile_of, (1024, 4096, 16384)))


def test_the_rows_of_a_group_in_the_mean_decide_and_not_the_rows_of_all(experts: ModuleType) -> None:
    draw = random.Random(3)
    for _ in range(20):
        mean = round(2 ** draw.uniform(0, 9))
        whole = experts.choose(128 * mean, 2048, 768)
        assert all(experts.choose(count * mean, 2048, 768, count) == whole for count in (1, 8, 16, 128))
    assert experts.choose(128, 2048, 768, 128).kernel != experts.choose(128 * 256, 2048, 768, 128).kernel


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_of_groups_predicts_what_the_planner_does(
    kind: GroupKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_file(KINDS[kind])
    plan = make(spec).plan
    made = made_library(f"only_{kind}", [spec], tmp_path, monkeypatch)
    forecast = made.library.table.forecast(is_measured=False)
    draw = random.Random(7)
    for _ in range(20):
        m, n, k = (round(2 ** draw.uniform(*ends)) for ends in ((0, 14), (4, 12), (5, 13)))
        # The planner's estimate is no shorter than the time at the peak of the tensor cores.
        estimate = family_for(plan).estimate(plan, (m, n, k))
        expected = max(estimate.cycles / estimate.hz, estimate.dram_seconds)
        assert math.isclose(forecast.predicted(spec.stem, (m, n, k)), expected, rel_tol=1e-12)


# --- measured times


def test_a_tuned_problem_gets_the_kernel_that_was_the_fastest_whatever_its_number_of_groups(
    tuned: ModuleType,
) -> None:
    few, some, many = (tuned.choose(128 * mean, 2048, 768) for mean in (1, 8, 64))
    assert len({few.kernel, some.kernel, many.kernel}) == 3
    assert few.why.endswith(" in 128 groups: 60.0 us measured, 200.0 us of the baseline")
    assert tuned.choose(16, 2048, 768, 16) == few
    assert tuned.choose(16 * 64, 2048, 768, 16) == many


def test_measured_times_correct_the_rule_for_problems_that_were_not_tuned(tuned: ModuleType) -> None:
    found = tuned.choose(64, 1536, 2048)
    assert re.fullmatch(r"not tuned: .+ \d+ x 2048 x 768", found.why)
    own, theirs = (tuned.library.table.forecast(gpu, is_measured=True) for gpu in (None, "NVIDIA H20"))
    shape = (500, 1536, 2048)
    ratio = own.expected(found.kernel, shape) / own.predicted(found.kernel, shape)
    assert ratio != 1
    assert theirs.expected(found.kernel, shape) / theirs.predicted(found.kernel, shape) == pytest.approx(
        ratio
    )
    assert theirs.predicted(found.kernel, shape) > own.predicted(found.kernel, shape)


def test_a_table_of_another_card_is_not_used(tuned: ModuleType) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert "not tuned" in tuned.explain(128, 2048, 768, gpu="NVIDIA H20")
    assert len(said) == 1
    tuned.accept_table()
    assert "tuned on NVIDIA H200" in tuned.explain(128, 2048, 768, gpu="NVIDIA H20")


def test_a_pinned_spec_states_each_decision_of_a_kernel_of_groups() -> None:
    for path in (*CHOSEN, *(spec_file(stem) for stem in KINDS.values())):
        source = load_spec(path)
        kernel = anonymous(plan_spec(source))
        text = pinned_text(kernel, source.spec, "pinned")
        assert anonymous(plan_spec(parse_spec(text.encode(), "pinned"))) == kernel


# --- calls


def test_a_call_chooses_once_for_the_shapes_of_its_tensors(
    experts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, object]] = []

    def host_of(name: str) -> SimpleNamespace:
        def run(a: object, b: object, offs: object, *, out: object = None) -> str:
            called.append((name, out))
            return name

        return SimpleNamespace(run=run)

    monkeypatch.setattr(experts.library, "host_of", cache(host_of))
    chosen = experts.choose
    asked: list[tuple[int, ...]] = []

    def choose(*sizes: int, gpu: str | None) -> Any:
        asked.append(sizes)
        return chosen(*sizes, gpu=gpu)

    monkeypatch.setattr(experts.library.table, "choose", choose)
    weight, offs, out = torch.empty(16, 2048, 768, dtype=BF16), torch.zeros(16, dtype=INT), torch.empty(0)
    for rows in (16, 16, 16 * 1024):
        a = torch.empty(rows, 768, dtype=BF16, device="meta")
        found = experts.matmul(a, weight.to("meta").mT, offs=offs, out=out)
        assert found == chosen(rows, 2048, 768, 16).kernel
    assert asked == [(16, 2048, 768, 16), (16 * 1024, 2048, 768, 16)]
    assert len({name for name, _ in called}) == 2
    assert all(each is out for _, each in called)


def test_the_number_of_groups_that_divide_k_is_part_of_a_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def nothing(*_: object) -> Tensor:
        return torch.empty(0)

    made = made_library("choices_of_k", [spec_file(KINDS["k_offsets"])], tmp_path, monkeypatch)
    monkeypatch.setattr(made.library, "host_of", InOrder)
    asked: list[tuple[int, ...]] = []
    chosen = made.choose

    def choose(*sizes: int, gpu: str | None) -> Any:
        asked.append(sizes)
        return chosen(*sizes, gpu=gpu)

    monkeypatch.setattr(made.library.table, "choose", choose)
    monkeypatch.setattr(InOrder, "computed", nothing)
    a, b = torch.empty(64, 256, dtype=BF16), torch.empty(256, 32, dtype=BF16)
    for groups in (2, 2, 3):
        made.matmul(a, b, offs=torch.zeros(groups, dtype=INT))
    assert asked == [(64, 32, 256, 2), (64, 32, 256, 3)]


def test_a_matrix_that_all_groups_share_leaves_the_number_of_groups_to_the_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shapes in (("a", ((1, 64, 128), (5, 128, 32))), ("b", ((5, 64, 128), (1, 128, 32)))):
        made = made_library(
            f"shared_{name}", [spec_file(f"h100_bf16_broadcast_{name}")], tmp_path, monkeypatch
        )
        tensors = [torch.empty(shape, dtype=BF16, device="meta") for shape in shapes]
        assert made.library.sizes_of(tensors) == (64, 32, 128, 5)
        assert made.OPERATOR(*tensors).shape == (5, 64, 32)
        assert made.can_implement(*shapes)[0]
        made.warmup([(64, 32, 128)], groups=5, device="meta")


def test_a_library_stores_rows_of_d_by_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_library("scattered", [spec_file("h100_bf16_scatter")], tmp_path, monkeypatch)
    made.warmup([(64, 512, 256)], groups=5, device="meta")
    a, b = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((64, 256), (5, 256, 512)))
    offs, d_rows = (torch.empty(count, dtype=INT, device="meta") for count in (5, 64))
    assert made.OPERATOR(a, b, offs, d_rows).shape == (64, 512)
    assert made.can_implement(a.shape, b.shape)[0]


def test_what_a_kernel_refuses_a_library_refuses_with_its_words(
    experts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", always(CARD))
    a, b = signs(8, 2048), signs(4, 64, 2048).mT
    with pytest.raises(ValueError, match="a must be on a CUDA device, found cpu"):
        experts.matmul(a, b, offs=torch.zeros(4, dtype=INT))
    a, b, offs = on_a_gpu(a), on_a_gpu(b), on_a_gpu(torch.zeros(4, dtype=INT))
    with pytest.raises(TypeError, match=r"a must be a tensor of torch\.bfloat16, found int$"):
        experts.matmul(1, b, offs=offs)
    with pytest.raises(TypeError, match=r"offs must be a tensor of torch\.int32, found torch\.int64"):
        experts.matmul(a, b, offs=on_a_gpu(torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"offs must have shape \[4\], found \[3\]"):
        experts.matmul(a, b, offs=on_a_gpu(torch.zeros(3, dtype=INT)))
    with pytest.raises(ValueError, match="b must have 3 dimensions"):
        experts.matmul(a, on_a_gpu(signs(64, 2048).T), offs=offs)


@pytest.mark.parametrize("rows", [[1, 0, 2, 0], [150, 0, 130, 40]], ids=["decode", "prefill"])
def test_a_library_computes_what_torch_does_by_the_kernel_that_it_chooses(
    rows: list[int], experts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator executes the kernel that `matmul` launches on a GPU that does not exist."""
    hosts: dict[str, Any] = {}

    def host_of(name: str) -> Any:
        if name not in hosts:
            file = libraries_folder() / NAME / f"{name}.py"
            hosts[name] = simulated_file(file, make(EXPERTS / "specs" / f"{name}.yaml"), monkeypatch).call
        return hosts[name]

    monkeypatch.setattr(experts.library, "host_of", host_of)
    monkeypatch.setattr(torch.cuda, "get_device_name", always(CARD))
    m, n, k = sum(rows), 72, 264
    a, weight = signs(m, k), signs(len(rows), n, k)
    offs = torch.tensor(rows, dtype=INT).cumsum(0, dtype=INT)
    found = experts.matmul(on_a_gpu(a), on_a_gpu(weight.mT), offs=on_a_gpu(offs)).as_subclass(Tensor)
    (name,) = hosts
    assert name == experts.choose(m, n, k, len(rows)).kernel
    parts = torch.split(a, rows)
    wanted = torch.cat([part.float() @ each.float().T for part, each in zip(parts, weight, strict=True)])
    assert torch.equal(found, wanted.bfloat16())


@pytest.mark.parametrize("kind", KINDS)
def test_a_warmup_has_every_kind_of_groups(
    kind: GroupKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_library(f"warm_{kind}", [spec_file(KINDS[kind])], tmp_path, monkeypatch)
    made.warmup([(256, 512, 1024), (8, 512, 1024)], device="meta")  # checks the tensors, launches nothing
    made.warmup([(256, 512, 1024)], groups=3, device="meta")
    with pytest.raises(ValueError, match="m, n and k must be 1 or more, found 0, 512 and 1024"):
        made.warmup([(0, 512, 1024)], device="meta")


def test_a_warmup_has_the_vectors_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stem in ("h100_bf16_masked_weighted", "h100_bf16_grouped_bias", "h100_e4m3_grouped_scaled"):
        made = made_library(f"warm_{stem}", [spec_file(stem)], tmp_path, monkeypatch)
        made.warmup([(256, 512, 1024)], device="meta")


@pytest.mark.parametrize(
    ("kind", "a", "b", "said"),
    [
        ("m_offsets", (4, 8), (8, 8), "b must have the dimensions [groups, K, N], found shape [8, 8]"),
        ("m_offsets", (4, 8), (2, 16, 8), "b must have a K of 8, found 16"),
        ("m_offsets", (4, 7), (2, 7, 8), "K must be a multiple of 8, as rows of a and b have"),
        ("m_offsets", (4, 8), (33, 8, 8), "there must be up to 32 groups, found 33"),
        ("m_offsets", (4, 0), (2, 0, 8), "a must have elements, found shape [4, 0]"),
        (
            "m_offsets",
            (4, 8),
            (32, 8, 2**27),
            (
                "M, N, K and the rows of all groups in memory must be up to 2147483392, found 4, 134217728, 8"
                " and 4294967296"
            ),
        ),
        ("m_masked", (3, 4, 8), (2, 8, 8), "b must have 3 groups, found 2"),
        ("batched", (4, 8), (2, 8, 8), "a must have the dimensions [groups, M, K], found shape [4, 8]"),
        ("k_offsets", (4, 8), (8, 8), "M must be a multiple of 8, as rows of a have"),
    ],
)
def test_what_a_library_of_groups_cannot_do_it_says(
    kind: GroupKind,
    a: tuple[int, ...],
    b: tuple[int, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = made_library(f"able_{kind}", [spec_file(KINDS[kind])], tmp_path, monkeypatch)
    able, why = made.can_implement(a, b)
    assert not able
    assert why.startswith(said)
    dtype = torch.float16
    assert made.can_implement(a, b, dtype) == (False, "a must be torch.bfloat16, found torch.float16")


def test_what_a_library_of_groups_can_do_comes_with_the_kernel(experts: ModuleType) -> None:
    able, why = experts.can_implement((16, 2048), (16, 2048, 1536))
    assert able
    assert why == experts.explain(16, 1536, 2048, 16)
    assert experts.can_implement((0, 2048), (16, 2048, 1536)) == (True, "nothing is computed, because M is 0")


# --- masked groups: only the caller knows how many rows they have


@pytest.fixture
def masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library of masked groups with tiles of 8 and of 128 rows."""
    wide = SPECS / "h100_bf16_masked.yaml"
    text = wide.read_text(encoding="utf-8")
    few = tmp_path / "masked_8x64x256.yaml"
    ping_pong = "warp_specialization: {kind: ping_pong}\nbuffering: {outstanding_mmas: 1}"
    assert "tile: {m: 128, n: 128, k: 64}" in text
    few.write_text(
        text.replace(
            "tile: {m: 128, n: 128, k: 64}",
            f"mma: {{swap_ab: true}}\ntile: {{m: 8, n: 64, k: 256}}\n{ping_pong}",
        )
    )
    return made_library("masked_groups", [few, wide], tmp_path, monkeypatch)


def test_the_expected_rows_of_masked_groups_decide_if_they_are_given(
    masked: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, wide = masked.KERNELS
    assert masked.choose(2048, 4096, 7168).kernel == wide
    assert masked.choose(2048, 4096, 7168, 32, 2).kernel == few
    assert masked.choose(2048, 4096, 7168, 32, 1024).kernel == wide
    called: list[str] = []

    def host_of(name: str) -> SimpleNamespace:
        def run(*_: object, **__: object) -> None:
            called.append(name)

        return SimpleNamespace(run=run)

    monkeypatch.setattr(masked.library, "host_of", cache(host_of))
    a = torch.empty(32, 2048, 256, dtype=BF16)
    b, rows = torch.empty(32, 256, 64, dtype=BF16), torch.zeros(32, dtype=INT)
    for expected in (2, None, 2, None):
        masked.matmul(a, b, rows=rows, expected_m=expected)
    assert called == [few, wide, few, wide]
    assert len(masked.library.chosen) == 2
    with pytest.raises(ValueError, match="found 32 with 0 rows"):
        masked.matmul(a, b, rows=rows, expected_m=0)


# --- one operator


def in_order(a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
    """Return the products of masked groups, or of groups of rows, on this CPU."""
    if a.dim() == 3:
        return torch.bmm(a, b)
    pairs = itertools.pairwise([0, *map(int, counts)])
    return torch.cat([a[first:end] @ b[group] for group, (first, end) in enumerate(pairs)])


class InOrder(OnTheCpu):
    """A kernel of groups."""

    def computed(self, *inputs: Tensor) -> Tensor:
        return in_order(*inputs)


@pytest.fixture
def called() -> Iterator[list[str]]:
    """The kernels that this CPU was asked for."""
    with noting() as found:
        yield found


def compiled(function: Callable[..., Tensor]) -> tuple[Any, list[torch.fx.GraphModule]]:
    """Return a compiled function, and the graphs that it has."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    return any_torch.compile(function, backend=backend, fullgraph=True, dynamic=True), graphs


def test_torch_compile_sees_one_operator_of_groups_that_chooses_when_it_runs(
    experts: ModuleType, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts.library, "host_of", InOrder)

    def relu_and_multiply(x: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        return experts.matmul(x.relu(), b, offs=offs)

    layer, graphs = compiled(relu_and_multiply)
    b = signs(4, 64, 128).mT
    for rows in (8, 4096):
        x, offs = signs(rows, 128), torch.tensor([rows // 4, rows // 2, rows // 2, rows], dtype=INT)
        assert torch.equal(layer(x, b, offs), in_order(x.relu(), b, offs))
    (graph,) = graphs
    assert [node.target for node in graph.graph.nodes if "gemmgen" in str(node.target)] == [experts.OPERATOR]
    assert called == [experts.choose(rows, 64, 128, 4).kernel for rows in (8, 4096)]
    opcheck: Any = vars(torch.library)["opcheck"]
    x, offs = signs(8, 128), torch.tensor([2, 4, 4, 8], dtype=INT)
    opcheck(experts.OPERATOR.default, (x, b, offs), test_utils=("test_schema", "test_faketensor"))


def test_the_operator_of_masked_groups_is_told_the_expected_rows(
    masked: ModuleType, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked.library, "host_of", InOrder)
    few, wide = masked.KERNELS

    def multiply(x: Tensor, b: Tensor, rows: Tensor) -> Tensor:
        return masked.matmul(x, b, rows=rows, expected_m=2)

    layer, _ = compiled(multiply)
    x, b, rows = signs(4, 2048, 128), signs(4, 64, 128).mT, torch.zeros(4, dtype=INT)
    assert torch.equal(layer(x, b, rows), torch.bmm(x, b))
    assert called == [few]
    masked.OPERATOR(x, b, rows)
    assert called == [few, wide]
    out = torch.empty(4, 2048, 64, dtype=BF16)
    assert masked.OPERATOR.out(x, b, rows, 2, out=out) is None
    assert called == [few, wide, few]


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_knows_the_shape_of_d(
    kind: GroupKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_library(f"shape_{kind}", [spec_file(KINDS[kind])], tmp_path, monkeypatch)
    shapes: dict[GroupKind, tuple[Any, Any, Any]] = {
        "m_offsets": ((40, 64), (3, 64, 36), (40, 36)),
        "m_masked": ((3, 40, 64), (3, 64, 36), (3, 40, 36)),
        "batched": ((3, 40, 64), (3, 64, 36), (3, 40, 36)),
        "k_offsets": ((40, 64), (64, 36), (3, 40, 36)),
    }
    a_shape, b_shape, d_shape = shapes[kind]
    a, b = (torch.empty(shape, dtype=BF16, device="meta") for shape in (a_shape, b_shape))
    counts = [] if kind == "batched" else [torch.empty(3, dtype=INT, device="meta")]
    d = made.OPERATOR(a, b, *counts)
    assert tuple(d.shape) == d_shape
    assert d.stride(-2) == 40 if kind != "k_offsets" else d.stride(-2) == 36
    with pytest.raises(ValueError, match="b must have 64 rows, as many as a has columns"):
        made.OPERATOR(a, torch.empty(*b_shape[:-2], 72, 36, dtype=BF16, device="meta"), *counts)


def test_a_library_computes_the_calls_of_torchs_grouped_mm(
    experts: ModuleType, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts.library, "host_of", InOrder)
    grouped = GroupedMM(experts)
    a, b, offs = signs(8, 128), signs(4, 64, 128).mT, torch.tensor([2, 4, 4, 8], dtype=INT)
    monkeypatch.setattr(torch.cuda, "get_device_name", always(CARD))
    found = grouped(on_a_gpu(a), on_a_gpu(b), on_a_gpu(offs)).as_subclass(Tensor)
    assert torch.equal(found, in_order(a, b, offs))
    assert (called, grouped.reason) == ([experts.choose(8, 64, 128, 4).kernel], "")


# --- what is wrong


def test_kernels_of_other_groups_are_refused(tmp_path: Path) -> None:
    found = refusal(lambda: read([SPECS / "h100_bf16_grouped.yaml", SPECS / "h100_bf16_grouped_rows8.yaml"]))
    assert found.code == "mixed-problems"
    assert '"bf16 in 32 groups"' in found.message
    assert '"bf16 in 128 groups"' in found.message
    own = read(SOURCES[:1])
    own_library = assemble("own", own, library.choose(own))
    assert refusal(lambda: exchange.write_configs(own_library, tmp_path)).code == "no-kernels"


@pytest.mark.gpu
def test_a_graph_of_groups_can_be_captured_after_a_warmup(experts: ModuleType) -> None:
    """Replays of one graph follow the groups that `offs` has then."""
    groups, m, n, k = 16, 64, 256, 512
    experts.warmup([(m, n, k)], groups=groups)
    a = torch.randn(m, k, device="cuda", dtype=BF16)
    weight = torch.randn(groups, n, k, device="cuda", dtype=BF16)
    offs = torch.full((groups,), m, device="cuda", dtype=INT)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        d = experts.matmul(a, weight.mT, offs=offs)
    for ends in ([m] * groups, [4 * group + 4 for group in range(groups)]):
        offs.copy_(torch.tensor(ends, dtype=INT))
        graph.replay()
        wanted = any_torch._grouped_mm(a, weight.mT, offs=offs)
        torch.testing.assert_close(d, wanted, rtol=1e-2, atol=1)
