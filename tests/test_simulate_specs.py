"""From specs to simulations: every spec is clean, in launches that wrap every ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import triton.experimental.gluon.language as gl  # pyright: ignore[reportMissingTypeStubs]
from drawn import integer_inputs, random_inputs
from hopper import hopper
from modules import made, spec_file

from gemmgen.errors import GemmgenError
from gemmgen.features.rows_by_index.checking import inside
from gemmgen.numerics.case import kernel_arguments
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import shape_text
from gemmgen.product import Product, make
from gemmgen.spec import Spec, SpecFile
from gemmgen.verify.launches import (
    Launch,
    all_launches,
    obeys_tensors,
    order_launch,
    parse_shape,
    parts_launch,
    pinned_launches,
    ragged,
    ring_launch,
    takes_parts,
)
from gemmgen.verify.simulation import simulate_product
from gluonsim import Severity

SPEC = Path(__file__).parent.parent / "specs" / "h100_bf16.yaml"
SEEDS = 10


def test_every_spec_is_clean_under_all_policies_and_ten_seeds_and_where_programs_share_the_tiles(
    product: Product,
) -> None:
    plan = product.plan
    simulation = simulate_product(product, (*all_launches(plan, SEEDS), sharing_launch(plan)))
    assert simulation.diagnostics == ()
    *launches, shared = simulation.launches
    # In that of three programs a ring need not come round.
    assert [note for note in simulation.notes if not note.startswith(f"{shape_text(shared.shape)}:")] == []
    random = [launch.schedules.count("random") for launch in launches]
    assert random == [SEEDS, 1, *[SEEDS] * takes_parts(plan), *[1] * obeys_tensors(plan)]
    assert launches[0].schedules[:3] == ("lazy", "eager", "lifo")
    tiles_m, tiles_n = plan.tiles(shared.shape)
    assert shared.programs == (3 if plan.persistent else tiles_m * tiles_n * plan.splits_per_tile)
    assert shared.shape[:2] == launches[0].shape[:2]


@pytest.mark.parametrize("name", ["grouped", "masked", "wgrad", "gather", "scatter"])
def test_tensors_that_a_kernel_obeys_are_out_of_bounds_in_its_last_launch(name: str) -> None:
    product = made(spec_file(f"h100_bf16_{name}"))
    *others, hostile = all_launches(product.plan, 1)
    assert [launch.inputs for launch in (*others, hostile)] == ["integers", "normal", "hostile"]
    problem = hostile.problem_of(product.source.problem)
    inputs = integer_inputs(hostile.shape, problem, torch.Generator().manual_seed(0), hostile=True)
    groups = problem.groups
    assert groups is not None
    assert groups.counts is not None
    of_groups = inputs.extras[groups.counts]
    extent = groups.extent_of(hostile.shape)
    assert int(of_groups.min()) < 0
    assert int(of_groups.max()) > extent
    assert bool((of_groups.diff() < 0).any())
    for index in (inputs.extras[keyword] for keyword in groups.row_indices):
        assert int(index.min()) < 0
        assert int(index.max()) >= hostile.shape[0]
        assert bool(inside(index, hostile.shape[0]).any())


def test_a_kernel_that_obeys_no_tensor_has_no_hostile_launch() -> None:
    launches = all_launches(made(spec_file("h100_bf16_batched")).plan, 1)
    assert "hostile" not in {launch.inputs for launch in launches}


def sharing_launch(plan: Kernel) -> Launch:
    """A launch in which each of three programs of a persistent kernel has tiles, and some have one more.

    The ring launch's tiles, each with one lap of the stages and a step.
    """
    ring = replace(ring_launch(plan, ("random",)), programs=3, wraps=False)
    if plan.schedule_kind == "single_tile":
        return ring
    return replace(ring, shape=(*ring.shape[:2], ragged(plan, 1, 1, plan.stages + 1)[2]))


def test_the_ring_launch_wraps_every_ring_at_ragged_edges(product: Product) -> None:
    plan = product.plan
    launch = ring_launch(plan).on(plan, "x.py")
    m, n, k = launch.shape
    assert m % plan.program_tile_m
    # Blocks of columns that share a scale are whole, and so are the tiles that divide them.
    assert n % plan.program_tile_n or plan.access.n_multiple % plan.program_tile_n == 0
    # Padded operands have whole steps only, where a step is no longer than what TMA pads at a time.
    assert k % plan.cta_tile_k or plan.access.k_multiple % plan.cta_tile_k == 0
    if plan.schedule_kind == "single_tile":
        return  # there is no ring
    tiles_m, tiles_n = plan.tiles(launch.shape)
    laps = 3 if plan.schedule_kind == "tiled" else 2
    assert -(-k // plan.cta_tile_k) >= laps * plan.stages + 2
    if plan.schedule_kind != "tiled":
        assert tiles_m * tiles_n >= plan.tiles_to_wrap


def test_the_order_launch_ends_a_group_of_tiles(product: Product) -> None:
    plan = product.plan
    tiles_m, tiles_n = plan.tiles(order_launch(plan).shape)
    if plan.schedule_kind == "single_tile":
        assert (tiles_m, tiles_n) == (1, 1)
        return
    along, across = (tiles_n, tiles_m) if plan.minor == "n" else (tiles_m, tiles_n)
    assert across > 2
    assert along > (plan.width if plan.order in ("grouped", "snake") else 4)


def planned(tmp_path: Path, lines: str = "", dtypes: tuple[str, str, str] = ("bf16", "bf16", "")) -> Product:
    """The product of a spec that says little else: the types of A and B, of D, and of C if there is one."""
    ab, d, c = dtypes
    path = tmp_path / "little.yaml"
    path.write_text(
        f"title: t\ntarget: h100\noperands:\n  a: {{dtype: {ab}}}\n  b: {{dtype: {ab}}}\n"
        + (f"  c: {{dtype: {c}}}\n" if c else "")
        + f"  d: {{dtype: {d}}}\n{lines}\n"
    )
    return make(path)


SINGLE_TILE = "schedule: {kind: single_tile}\ntile: {m: 64, n: 128, k: 64}"


def test_a_tiled_kernel_is_launched_with_a_program_for_each_tile(tmp_path: Path) -> None:
    plan = planned(tmp_path, "schedule: {kind: tiled}").plan
    ring, order = (launch.on(plan, "x.py") for launch in (ring_launch(plan), order_launch(plan)))
    for launch in (ring, order):
        tiles_m, tiles_n = plan.tiles(launch.shape)
        assert launch.programs == tiles_m * tiles_n > 2
        assert launch.one_tile
    # The stages come round three times within the one tile.
    assert -(-ring.shape[2] // plan.cta_tile_k) == 3 * plan.stages + 2
    assert [launch.on(plan, "x.py").programs for launch in pinned_launches((1, 1, 1), 0)] == [1, 1]


def test_two_sub_tiles_of_a_program_of_one_tile_are_covered_as_far_as_they_can_be(tmp_path: Path) -> None:
    lines = "schedule: {kind: tiled}\ntile: {m: 64, n: 128, k: 64}\nepilogue: {beta: 1, subtile_n: 64}"
    product = planned(tmp_path, f"{lines}\nbuffering: {{epilogue: 1}}", ("bf16", "bf16", "bf16"))
    assert simulate_product(product, (ring_launch(product.plan, ("lazy",)),)).problems == ()
    short = replace(ring_launch(product.plan, ("lazy",)), shape=(64, 128, 2 * product.plan.stages * 64))
    (problem,) = simulate_product(product, (short,)).problems
    assert (problem.kind, problem.name) == ("ring-coverage", "load_ready[0]")


def test_a_kernel_of_a_single_tile_is_launched_on_parts_of_it_and_on_all_of_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, SINGLE_TILE).plan
    ring, order = (launch.on(plan, "x.py") for launch in (ring_launch(plan), order_launch(plan)))
    assert (ring.shape, ring.programs, ring.wraps) == ((43, 86, 43), 1, False)  # a third is left out
    assert (order.shape, order.programs) == ((64, 128, 64), 1)


def test_a_shape_of_more_than_the_single_tile_is_refused(tmp_path: Path) -> None:
    product = planned(tmp_path, SINGLE_TILE)
    message = r"^little\.py: error\[shape-too-large\]: 65x1x1 is more than the one tile of 64x128x64$"
    with pytest.raises(GemmgenError, match=message):
        simulate_product(product, pinned_launches((65, 1, 1), 0))


def test_with_ping_pong_each_consumer_has_tiles_enough_to_wrap_its_buffers(tmp_path: Path) -> None:
    plan = hopper(planned(tmp_path, "warp_specialization: {kind: ping_pong}").plan)
    tiles_m, tiles_n = plan.tiles(ring_launch(plan).shape)
    assert tiles_m * tiles_n >= plan.consumers * (2 * plan.epilogue_buffers + 1)


def test_a_curve_fills_a_whole_square_in_the_order_launch() -> None:
    plan = make(spec_file("h100_bf16_hilbert")).plan
    assert (plan.order, plan.width) == ("hilbert", 8)
    assert plan.tiles(order_launch(plan).shape) == (9, 9)


def test_a_curve_through_a_large_square_is_not_run_whole(tmp_path: Path) -> None:
    plan = planned(tmp_path, "schedule: {kind: persistent, order: hilbert, width: 16}").plan
    assert plan.tiles(order_launch(plan).shape) == (5, 3)


def test_a_group_along_n_ends_in_the_order_launch(tmp_path: Path) -> None:
    plan = planned(tmp_path, "schedule: {kind: persistent, order: snake, minor: n, width: 4}").plan
    assert plan.tiles(order_launch(plan).shape) == (3, 5)


KINDS = {
    "single tile": (SINGLE_TILE, ("bf16", "bf16", "")),
    "tiled": ("schedule: {kind: tiled}", ("fp16", "fp32", "")),
    "C and factors": ("epilogue: {alpha: -1.0, beta: 0.5}", ("bf16", "bf16", "bf16")),
    "exact operations": ("epilogue: {ops: [row_scale, residual, relu]}", ("e4m3", "e4m3", "fp16")),
    "a curve": ("epilogue: {ops: [column_bias, gelu_erf]}", ("bf16", "bf16", "")),
    "integers": ("", ("int8", "int32", "")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_of_every_kind_is_called_as_its_wrapper_does(tmp_path: Path, kind: str) -> None:
    product = planned(tmp_path, *KINDS[kind])
    simulation = simulate_product(product, (ring_launch(product.plan, ("lazy",)),))
    assert simulation.diagnostics == ()
    assert simulation.notes == ()


def test_a_wrong_operation_is_found_on_integers_and_within_the_tolerance_of_a_curve(tmp_path: Path) -> None:
    for lines, told in (
        ("epilogue: {alpha: -1.0}", "elements of d are wrong, the first at [0, 0]"),
        ("epilogue: {alpha: -1.0, ops: [silu]}", "elements of d are wrong, the first at [0, "),
    ):
        product = planned(tmp_path, lines)
        other = planned(tmp_path, lines.replace("-1.0", "-0.5"))
        wrong = replace(product, module=other.module)
        simulation = simulate_product(wrong, (ring_launch(product.plan, ("lazy",)),))
        texts = [problem.text for problem in simulation.problems if problem.kind == "wrong-numbers"]
        assert any(told in text for text in texts), texts


def test_errors_come_before_the_lints_of_an_earlier_launch() -> None:
    product = make(spec_file("h100_bf16_one_consumer"))
    group = "group = tile // (GROUP_TILES_M * args.tiles_n)"
    assert group in product.module
    altered = replace(product, module=product.module.replace(group, f"{group} * 0"))
    simulated = simulate_product(altered, all_launches(product.plan, 1))
    severities = [problem.severity for problem in simulated.problems]
    assert severities == sorted(severities, key=list(Severity).index)
    assert set(severities) == set(Severity)
    assert [each.severity for each in simulated.diagnostics] == [each.diagnosed for each in severities]


def test_arguments_are_found_by_their_names() -> None:
    layouts = {rank: gl.NVMMASharedLayout(128 if rank == 2 else 0, 32, rank) for rank in (1, 2)}
    module = ModuleType("fake")
    module.__dict__["matmul_kernel"] = SimpleNamespace(
        arg_names=["a_desc", "b_desc", "row_bias_desc", "tensor_scale_ptr", "d_desc"]
    )
    module.__dict__["TMA"] = {
        "out": {"block_shape": [64, 32], "layout": layouts[2]},
        "row_bias": {"block_shape": [64], "layout": layouts[1]},
        "a": {"block_shape": [64, 32], "layout": layouts[2]},
        "b": {"block_shape": [32, 32], "layout": layouts[2]},
    }
    operands = {"a": {"dtype": "tf32"}, "b": {"dtype": "tf32"}, "d": {"dtype": "fp32"}}
    epilogue = {"ops": ["tensor_scale", "row_bias"]}
    spec = SpecFile.of(
        Spec.model_validate({"title": "t", "target": "h100", "operands": operands, "epilogue": epilogue})
    )
    inputs = random_inputs((24, 36, 44), spec.problem, torch.Generator().manual_seed(0))
    d = torch.empty(24, 36)
    a_desc, b_desc, bias_desc, scale, d_desc = kernel_arguments(module, spec.problem, inputs, d)
    assert scale is inputs.extras["tensor_scale"]
    described = [
        (list(x.shape), x.block_shape, x.round_f32_to_tf32) for x in (a_desc, b_desc, bias_desc, d_desc)
    ]
    assert described == [
        ([24, 44], [64, 32], True),
        ([36, 44], [32, 32], True),  # N x K
        ([24], [64], False),
        ([24, 36], [64, 32], False),
    ]


def test_a_chosen_shape_that_wraps_no_ring_is_a_finding() -> None:
    (launch, _) = pinned_launches((128, 256, 256), 0)
    simulation = simulate_product(make(SPEC), (replace(launch, schedules=("lazy",), wraps=True),))
    assert [problem.kind for problem in simulation.problems] == ["ring-coverage"]


def test_a_shape_is_three_extents_that_a_cpu_can_do() -> None:
    assert parse_shape("1x20x300") == (1, 20, 300)
    for text in ("", "1x2", "1x2x3x4", "axbxc", "-1x1x1", "1x1x9999999999"):
        with pytest.raises(ValueError, match=r"MxNxK|hours|elements"):
            parse_shape(text)


def test_sums_added_as_they_come_differ_in_bits_and_only_a_plan_that_says_so_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "tile: {m: 64, n: 64, k: 64}\nwarp_specialization: {kind: cooperative, consumers: 1}\n"
    lines += "schedule: {kind: persistent, order: row, splits: 4, reduction: atomic}"
    product = planned(tmp_path, lines, ("bf16", "fp32", ""))  # bf16 would hide the last bits
    plan = hopper(product.plan)
    launch = parts_launch(plan, ("lazy", *["random"] * 5))
    assert simulate_product(product, (launch,)).problems == ()
    monkeypatch.setattr(type(plan), "deterministic", True)
    assert "not-deterministic" in {problem.kind for problem in simulate_product(product, (launch,)).problems}
