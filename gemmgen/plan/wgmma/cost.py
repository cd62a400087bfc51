"""What a plan is expected to cost on a problem, and how far it is beyond limits: ranks, judges nothing.

A plan's time is a sum of named terms; ``docs/planner.md`` explains them. They are reckoned in nanoseconds of
an H200 and told in cycles of ``Gpu.sustained_hz``, the unit of all estimates. ``python -m benchmarks.fit``
fits the constants to records:

* [many-rows] 118 shapes of 128 rows or more by 24 pinned kernels of bf16:
  ``benchmarks/fit/h200_many_rows.jsonl``;
* [composed] kernels of composed tiles at nine shapes: ``benchmarks/fit/h200_composed.jsonl``;
* [staggered] staggered tiles and others, most of as many columns, at 13 shapes of bf16 and of e4m3:
  ``benchmarks/fit/h200_staggered.jsonl``, ``benchmarks/fit/h200_staggered_e4m3.jsonl``;
* [first-choices] an earlier planner's first five at 137 shapes of 128 rows or more, 114 kernels:
  ``benchmarks/fit/h200_first_choices.jsonl``;
* [unfilled-waves] 42 pinned kernels at 22 shapes whose tiles fill no wave, or just one:
  ``benchmarks/fit/h200_unfilled_waves.jsonl``;
* [one-wave] 33 pinned kernels, with roles and without, at 33 shapes of which a wave holds all tiles:
  ``benchmarks/fit/h200_one_wave.jsonl``;
* [wave-stores] 42 pinned kernels of bf16 and e4m3 that store D by one or several buffers, at 11 shapes of one
  wave: ``benchmarks/fit/h200_wave_stores.jsonl``;
* [few-rows] up to 64 rows: 3,856 times of about 200 kernels at 155 shapes of bf16 and e4m3, which no record
  has all; ``benchmarks/fit/h200_few_rows.jsonl`` has what was timed later;
* [early] the 696 times in that record of kernels that are launched before the one ahead has ended;
* [early-roles] the first three with roles at 17 shapes, with and without that:
  ``benchmarks/suites/h200_dependent.jsonl``;
* [long-k] 31 kernels with parts of K at 256 x 256 x 32768 and 512 x 512 x 16384 in bf16
  (``benchmarks/fit/h200_long_k_256.jsonl`` and ``..._512.jsonl``), and 26 more, some of them without their
  sums or with two K steps, of which only medians are kept (``h200_long_k_taken_apart.json`` and
  ``..._without_roles.json`` there): times with roles to 11 %, without them, to which the
  constants were not fitted, to 20 %;
* [parallel] kernels whose sums a second one adds up, at 256 x 256 x 32768 and 512 x 512 x 16384, written by
  hand from generated ones, of which only medians are kept (``benchmarks/fit/h200_parallel.json``), and the
  first eight at five shapes: ``benchmarks/suites/h200_long_k.jsonl``;
* [launch-order] some of these with programs in other orders at both shapes, by hand again, medians only
  (``benchmarks/fit/h200_launch_order.json``);
* [session] ratios to cuBLAS of kernels that no record has: 8192 x 8192 x 8192, 4096 x 4096 x 4096 and
  8192 x 8192 x 1024 of one session, kept in ``tests/test_candidates.py``.

They order plans to within a few percent; a time that they give is not a measurement.
"""

from __future__ import annotations

from gemmgen.hardware.gpus import GPUS, Gpu, Product
from gemmgen.plan.decisions import LINES
from gemmgen.plan.rule import once
from gemmgen.plan.search import Estimate, estimated, excess_of, l2_bytes, traffic_of, whole_cycles
from gemmgen.plan.timing import Card, Stream, Tiles, causes, moved_bytes
from gemmgen.plan.wgmma.bounds import least_registers, most_consumers
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem import Shape

TENSOR_CYCLES_PER_NS = 1.74
"""[many-rows] At which the tensor cores of few SMs work: the clock, which power then does not limit."""
POWER_CYCLES_PER_NS = 1.316
"""[many-rows] The same where all SMs do nothing else."""
POWER_EXPONENT = 0.211
"""[many-rows] With which that rate rises where tensor cores idle: at half of their work it is 1.16 times as
high.
"""
SMEM_WRITE_SHARE = 0.373
"""[many-rows] Of the time in which shared memory is read, what TMA's writes of as many bytes take."""
LOAD_LATENCY_NS = 690
"""[many-rows] From asking for a stage to its first bytes, where many SMs load."""
LOAD_BYTES_PER_NS = 285
"""[many-rows] At which the other bytes follow, of all CTAs on an SM."""
DRAIN_NS = 155
"""[session] From the last instruction of an MMA to the first of the next where none is in flight, and no
other consumer multiplies: ping-pong 0.78, a lone consumer of eight warps 0.91.
"""
SHARED_TILE_NS = 30
"""[many-rows] By which 128 bytes of K, a swizzled row, take longer where warpgroups beside a warp that loads
share a tile, so wait for the same stage, and all SMs work; of few SMs, whose loads come in time, each covers
for the other. [one-wave] Those of the only CTA on an SM that load themselves wait as long.
"""
NARROW_PART = 64
"""[unfilled-waves] Columns: tiles of 128 x 80, 128 x 96 and 64 x 224 took what one reading of A gives, those
of 128 x 112 and 256 x 112, of which two parts are narrower, 1.2 to 1.3 times as long.
"""
NARROW_READ_SHARE = 0.75
"""[staggered] Of the cycles by which a part's instruction reads longer than it multiplies, those that no
other part makes up for: what tiles of 128 x 144 to 128 x 288 took more than staggered ones. With all of them
tiles of 128 x 80 and 128 x 96 would be predicted 9 % too slow.
"""
REFILL_NS = {"single_tile": 0, "tiled": 182, "persistent": 529}
"""To wait for a stage and ask for another where the warps that multiply also load: [many-rows] tiled;
[session] persistent, which had 0.571 without an MMA in flight.
"""
REFILL_COVER = {"single_tile": 0.0, "tiled": 0.195, "persistent": 0.6}
"""Part of a step's MMA in flight behind which that is hidden, likewise: a persistent kernel had 0.957."""
LONE_REFILL_COVER = 1.0
"""[one-wave] The same of a tiled kernel whose CTA is alone on its SM: nobody else asks for stages there."""
TILED_START_NS = 400
"""[one-wave] By which a kernel without roles starts and ends sooner: no role has to be sent to its work."""
LONE_LOAD_BYTES_PER_NS = 70
"""[one-wave] At which a stage comes in where the only CTA on an SM asks for it with an MMA in flight: all SMs
start together and ask at the same time, for 9 TB/s. Those that drain their MMAs do not keep step [session].
"""
HELD_A_NS = 120
"""[first-choices] In which a consumer whose A passes through registers does not multiply, for 64 rows, 128
bytes of K and each part of its tile. 128 x 80 to 128 x 112 took 1.4 times as long as predicted without it;
where MMAs are longer, the other consumer covers for it.
"""
SHORT_STEP_NS = 60
"""[composed] [first-choices] By which a K step of less than 128 bytes, a swizzled row, takes longer: as many
barriers for half of the work.
"""
PROMOTION_CYCLES_PER_REGISTER = 2
"""[session] To add a register of partial sums to the accumulator: fp8 promoted after 128 of K had 0.893,
after 256 1.010, in ping-pong 0.53.
"""
EPILOGUE_START_NS = 68
"""[many-rows] From the last MMA of a tile to its epilogue, and from that to the next tile's first MMA."""
EPILOGUE_BYTES_PER_NS_AND_WARP = 5.05
"""[many-rows] Of C and D, converted and handed to TMA."""
STORE_WAIT_NS = 100
"""[wave-stores] For TMA to have read a sub-tile, where the next one goes through the same, only buffer. One
of ping-pong consumers waits while the other multiplies; kernels that load C were not measured.
"""
EPILOGUE_SHARE_OF_CONSUMERS_APART = 2 / 3
"""[session] What of it is left where consumers run apart, one storing while another still multiplies: bf16
1.027, 1.005 and 1.066; fp8 1.040, 1.026 and 1.083. With an MMA in flight, which keeps them in step, fp8 had
1.024, 1.00 and 0.99.
"""
TURN_NS = 270
"""[many-rows] From the last MMA of a ping-pong consumer to the first of the other one."""
CLUSTER_SHARE = 0.01
"""[many-rows] Of the main loop, in which CTAs of a cluster wait for one another at every stage."""
CLUSTER_START_NS = 900
"""[many-rows] [first-choices] By which a kernel of clusters starts and ends later, however short it is."""
CLUSTER_LATENCY_NS = 500
"""[first-choices] By which a stage's lap is longer where all CTAs of a cluster have to be done with it."""
OCCUPANCY_SHARE = 0.035
"""[many-rows] The same of CTAs that share an SM."""
START_NS = 1_926
"""[many-rows] From a kernel's launch, in a chain of such, to its first MMA, and from its last store to the
launch of the next one.
"""
ROUND_NS = 1_740
"""[many-rows] From the end of a program's epilogue to the first MMA of the next one in its place."""
DRAM_BYTES_SHARE = 0.812
"""[many-rows] Of the datasheet's bandwidth: 3.9 of an H200's 4.8 TB/s."""
DRAM_OVERLAP = 4.0
"""[many-rows] The exponent with which the times of DRAM and of the SMs add up."""
L2_BYTES_PER_NS = 15_000
"""[many-rows] That all SMs take in from L2, multicast or not, for 64 x 128 gains nothing by it
[first-choices]; kernels that need more got 11,000 to 16,600, no rule says when.
"""
L2_OVERLAP = 8.0
"""[many-rows] The exponent with which the times of L2 and of the busiest SM add up."""


STREAM_START_NS = 2_630
"""[few-rows] From a kernel's launch, in a chain of such, to its first byte, and from its last to the next."""
STREAM_ROUND_NS = 1_280
"""[few-rows] From the last byte of one round of tiles on an SM to the first of the next."""
STREAM_LATENCY_NS = 650
"""[few-rows] From asking for a stage to its bytes: a ring delivers all its stages in it, at most."""
STREAM_STEP_NS = 7
"""[few-rows] To issue a K step."""
STREAM_DRAIN_NS = 27
"""[few-rows] In which a K step's MMAs drain, and its stage is asked for again, where none is in flight."""
STREAM_MMA_CYCLES_PER_NS = 3.1
"""[few-rows] At which instructions of few columns would be issued: they hardly count."""
LEAST_MMA_CYCLES = 26
"""[few-rows] Of an instruction of few columns."""
SM_BYTES_PER_NS = 150
"""[few-rows] That one SM takes in."""
TPC_BYTES_PER_NS = 231
"""[few-rows] That two SMs side by side take in, each with a ring of its own that fills it: where only some
have a neighbour at work, as of 80 tiles on 132 SMs, those end late.
"""
ALL_SMS_BYTES_PER_NS = 16_700
"""[few-rows] That all SMs take in: tiles of fewer rows than A has read B more than once."""
DRAM_SHARE = 0.99
"""[few-rows] Of the datasheet's bandwidth: 4.76 of an H200's 4.8 TB/s."""
OVERLAP = 2.5
"""[few-rows] The exponent with which the times of DRAM, of the busiest SM and of all SMs add up."""
SPLIT_NS = 740
"""[few-rows] To leave sums in memory and to count the programs that have."""
SPLIT_BYTES_PER_NS = 23
"""[few-rows] At which the last program of a tile adds up the sums of all."""


EARLY_NS = 900
"""[early] By which a kernel that is launched early starts sooner, if it takes more than half of the GPU."""
EARLY_PLACES = 0.95
"""[early] Share of the places on the GPU that its programs take from where on nothing is lost by that."""
EARLY_LOSS = 1.02
"""[early] Of its time, for each place that is left: the programs behind wait there, and those for which there
is no place come late, beside others.
"""
EARLY_COVER = 2.5
"""[early] Of that loss, how much for each part of K that a program's ring holds: it is loaded ahead."""
EARLY_DELIVERY = 0.9
"""[early-roles] Of what L2 and DRAM deliver to kernels with roles, where they start beside the one ahead: 51
gains of 0.86 to 1.11 are known to 4.0 % with it and ``EARLY_NS``, and to 5.5 % without. Those that start when
all of the one ahead have ended (trigger end) gain nothing by it, 0.990 in the mean.
"""
ROLES_START_NS = 1_200
"""[long-k] What a program with roles takes longer to start and to end."""
ROLES_SPLIT_NS = 3_000
"""[long-k] To leave sums, to count the programs that have, in a cluster together, and to store the tile."""
ROLES_SPLIT_BYTES_PER_NS = 130
"""[long-k] At which consumers add up sums that lie in the order of registers."""
PARALLEL_NS = 500
"""[parallel] From the last sums in memory to a second kernel that reads them, and to the end of that."""
SENT_SHARE = 0.5
"""[launch-order] Of the bytes that all SMs take in, what limits kernels whose programs of a GPC load the same
at the same time: the operand that their clusters do not share.
"""
PARALLEL_BYTES_PER_NS = 1_800
"""[parallel] At which sums go to memory and come back, all of them."""
ATOMIC_NS = 740
"""[long-k] To count, and to store the tile."""
ATOMIC_ROLES_NS = 1_250
"""[long-k] What both take longer in a program with roles."""
ATOMIC_BYTES_PER_NS = 17.5
"""[long-k] At which a CTA adds its sums to those in memory, and at which one reads and clears them."""
WIDE_MMA_CYCLES_PER_NS = 1.75
"""[long-k] At which instructions of 64 and more columns are issued: the clock of a short kernel."""
LONE_STEP_NS = 50
"""[long-k] In which a K step's MMAs are not issued, where no other consumer covers for them."""


@once
def mma_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of the tensor cores for one K step of a CTA tile.

    A narrow instruction takes some: that was measured with swap-AB. Those of a part wait for what they read
    from shared memory, 64 rows of A and their columns of B: 24 cycles for 32 columns, which are
    multiplied in 16. The wider ones beside them make up for little of it.
    """
    m, n, k = plan.mma_shape
    fma_per_cycle = plan.architecture.mma_16bit_fma_per_cycle * 16 / plan.problem.a.dtype.bits
    if plan.swap_ab or not plan.composed or plan.a_source == "registers":
        instructions = plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / (m * n * k)
        return instructions * max(m * n * k / fma_per_cycle, LEAST_MMA_CYCLES)
    cycles = 0.0
    for columns, rows, (_, n, _) in zip(plan.column_parts, plan.part_rows, plan.mma_shapes, strict=True):
        instructions = rows * columns * plan.cta_tile_k / (m * n * k)
        read = (m + n) * k * plan.problem.a.dtype.bytes / plan.architecture.smem_bytes_per_cycle
        each = m * n * k / fma_per_cycle
        cycles += instructions * (each + NARROW_READ_SHARE * max(0.0, read - each))
    return cycles


@once
def smem_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of shared memory: each instruction reads its 64 rows of A and its columns of B.

    Exchanged operands are read likewise, 64 columns of B and the rows of A.
    """
    m = plan.mma_shape[0]
    extent, parts, extents = plan.cta_tile_m, plan.column_parts, plan.part_rows
    if plan.swap_ab:
        extent, parts, extents = plan.cta_tile_n, (plan.cta_tile_m,), (plan.cta_tile_n,)
    rows = float(extent * _reads_of_a(plan))
    for part, rows_of_part, (_, n, _) in zip(parts, extents, plan.mma_shapes, strict=True):
        rows += rows_of_part * (part / m + part / n - 1)
    return rows * plan.cta_tile_k * plan.problem.a.dtype.bytes / plan.architecture.smem_bytes_per_cycle


def _reads_of_a(plan: WgmmaKernel) -> int:
    """Return how often the parts of a tile read its A: once where their MMAs follow one another.

    [unfilled-waves] From shared memory they read it again where a warpgroup has more rows than an
    instruction, so that other rows come between, and for each narrow part beside another one.
    """
    if plan.a_source == "registers" or not plan.composed:
        return 1
    warpgroups = plan.row_shares * plan.consumer_warps // plan.architecture.warps_per_warpgroup
    if plan.cta_tile_m > warpgroups * plan.mma_shape[0]:
        return len(plan.column_parts)
    return max(1, sum(part < NARROW_PART for part in plan.column_parts))


def loaded_bytes(plan: WgmmaKernel) -> float:
    """Return a CTA's share of the bytes that a K step loads, multicast ones divided by who shares them."""
    return plan.stage.bytes_per_cta


def row_share(plan: WgmmaKernel) -> float:
    """Return how many of the widest swizzled rows a K step's bytes of A are."""
    return plan.cta_tile_k * plan.problem.a.dtype.bytes / plan.architecture.tma_swizzle_bytes[0]


def card_of(gpu: Gpu | Product) -> Card:
    """Return what a GPU delivers; clocks and shares of the bandwidth are those of an H200.

    So is what L2 delivers to an SM.
    """
    sustains = isinstance(gpu, Product) and gpu.sustains_clock
    share = gpu.sm_count / GPUS["h200"].sm_count
    return Card(
        sm_count=gpu.sm_count,
        dram_bytes_per_second=gpu.dram_bytes_per_second,
        dense_flops_per_second=gpu.dense_16bit_flops_per_second,
        tensor_cycles_per_ns=TENSOR_CYCLES_PER_NS,
        power_cycles_per_ns=TENSOR_CYCLES_PER_NS if sustains else POWER_CYCLES_PER_NS,
        power_exponent=POWER_EXPONENT,
        l2_bytes_per_ns=L2_BYTES_PER_NS * share,
        l2_overlap=L2_OVERLAP,
        dram_share=DRAM_BYTES_SHARE,
        dram_overlap=DRAM_OVERLAP,
        stream_l2_bytes_per_ns=ALL_SMS_BYTES_PER_NS * share,
        stream_dram_share=DRAM_SHARE,
        stream_overlap=OVERLAP,
    )


def row_of(plan: WgmmaKernel) -> Tiles | Stream:
    """Return the numbers from which ``timing`` predicts a kernel's time.

    Kernels with swap-AB and a tile for each program, and all that divide K, stream B past A.
    """
    streams = plan.splits > 1 or (plan.swap_ab and plan.schedule_kind == "tiled")
    return _stream_row(plan) if streams else _tiles_row(plan)


def _tiles_row(plan: WgmmaKernel) -> Tiles:
    written = plan.stage_bytes / plan.architecture.smem_bytes_per_cycle
    clusters = plan.cluster_size > 1
    refill, cover = _refill(plan)
    chunk = plan.divides_last_wave
    return Tiles(
        swap_ab=plan.swap_ab,
        line=_line(plan),
        rows=plan.program_tile_m,
        columns=plan.program_tile_n,
        together=plan.tiles_together,
        depth=plan.cta_tile_k,
        ctas=plan.cluster_size,
        programs=plan.gpu.clusters(plan.cluster_size),
        occupancy=plan.occupancy,
        tensor_cycles=mma_cycles(plan),
        smem_cycles=smem_cycles(plan) + SMEM_WRITE_SHARE * written,
        exposed=_exposed_ns(plan),
        exposed_of_all=SHARED_TILE_NS * row_share(plan) if _warpgroups_share_a_stage(plan) else 0.0,
        refill=refill,
        refill_cover=cover,
        shares=plan.row_shares,
        held=_held_a_ns(plan),
        short_step=SHORT_STEP_NS if row_share(plan) < 1 else 0,
        latency=LOAD_LATENCY_NS + (CLUSTER_LATENCY_NS if clusters else 0),
        loading=loaded_bytes(plan) / _load_bytes_per_ns(plan),
        stages=plan.stages,
        outstanding=plan.outstanding_mmas,
        stage_bytes=plan.stage_bytes,
        epilogue=_epilogue_ns(plan),
        turn=TURN_NS if plan.ping_pong else 0,
        cluster_share=CLUSTER_SHARE if clusters else 0,
        occupancy_share=OCCUPANCY_SHARE,
        start=_start_ns(plan),
        next_round=0 if plan.persistent else ROUND_NS,
        delivery=EARLY_DELIVERY if _overlaps(plan) else 1,
        least_steps=plan.least_steps if chunk else 0,
        least_saved_steps=plan.least_saved_steps if chunk else 0,
        leave_sums=ROLES_SPLIT_NS if chunk else 0,
        sums_of_chunk=_sums_bytes(plan) / ROLES_SPLIT_BYTES_PER_NS if chunk else 0,
    )


def _line(plan: WgmmaKernel) -> str:
    """Return the dimension of the lines in which tiles are walked; none for orders without lines.

    With swap-AB the order does not count.
    """
    return plan.minor if plan.order in LINES and not plan.swap_ab else ""


def _held_a_ns(plan: WgmmaKernel) -> float:
    """Return the time of a K step in which a consumer brings A to registers and does not multiply.

    With an MMA in flight it multiplies meanwhile.
    """
    if not plan.specialized or plan.a_source != "registers" or plan.outstanding_mmas:
        return 0.0
    instructions = plan.cta_tile_m / (plan.row_shares * plan.mma_shape[0]) * len(plan.column_parts)
    return HELD_A_NS * instructions * row_share(plan)


def _warpgroups_share_a_stage(plan: WgmmaKernel) -> bool:
    """Whether warpgroups wait for one stage together, with nobody else on the SM to cover for them."""
    warpgroups = plan.consumer_warps * plan.row_shares // plan.architecture.warps_per_warpgroup
    return warpgroups > 1 and (plan.specialized or _is_alone(plan))


def _exposed_ns(plan: WgmmaKernel) -> float:
    """Return the time of a K step in which its CTA has no MMA in flight, whatever other CTAs do."""
    exposed = 0.0
    if not plan.outstanding_mmas and plan.row_shares == 1:
        exposed += DRAIN_NS
    if not (plan.specialized or plan.synchronous or plan.outstanding_mmas):
        exposed += REFILL_NS[plan.schedule_kind]
    if plan.promote_k:
        cycles = PROMOTION_CYCLES_PER_REGISTER * plan.accumulator_registers / 2
        exposed += cycles / POWER_CYCLES_PER_NS
    return exposed


def _refill(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the time to ask for a stage beside an MMA in flight, and the share of the MMA that hides it."""
    if plan.specialized or plan.synchronous or not plan.outstanding_mmas:
        return 0.0, 0.0
    cover = LONE_REFILL_COVER if _is_alone(plan) else REFILL_COVER[plan.schedule_kind]
    return REFILL_NS[plan.schedule_kind], cover


def _is_alone(plan: WgmmaKernel) -> bool:
    """Whether a kernel without roles has one CTA on an SM, with a tile of its own."""
    return plan.schedule_kind == "tiled" and not plan.specialized and plan.occupancy == 1


def _load_bytes_per_ns(plan: WgmmaKernel) -> float:
    """Return the rate at which a stage comes in from its first bytes on."""
    together = _is_alone(plan) and plan.outstanding_mmas
    return LONE_LOAD_BYTES_PER_NS if together else LOAD_BYTES_PER_NS


def _start_ns(plan: WgmmaKernel) -> float:
    """Return the time from a kernel's launch to its first MMA, and from its last store to the next launch."""
    sooner = TILED_START_NS if plan.schedule_kind == "tiled" and not plan.specialized else 0
    sooner += EARLY_NS if _overlaps(plan) else 0
    return START_NS + (CLUSTER_START_NS if plan.cluster_size > 1 else 0) - sooner


def _epilogue_ns(plan: WgmmaKernel) -> float:
    """Return the time in which a tile's consumers load C, convert the accumulator and hand D to TMA."""
    element_bytes = plan.problem.d.bytes + (plan.problem.c.bytes if plan.problem.c else 0)
    warps = plan.consumer_warps * plan.row_shares
    passed = plan.cta_tile_m * plan.cta_tile_n * element_bytes / (EPILOGUE_BYTES_PER_NS_AND_WARP * warps)
    passed += STORE_WAIT_NS * _waits_for_stores(plan)
    if plan.ping_pong:
        return passed
    apart = plan.row_shares > 1 and not plan.outstanding_mmas
    return EPILOGUE_START_NS + passed * (EPILOGUE_SHARE_OF_CONSUMERS_APART if apart else 1)


def _waits_for_stores(plan: WgmmaKernel) -> int:
    """Return how often the consumers of a tile wait for the store of the sub-tile before it."""
    if plan.epilogue_buffers > 1 or plan.ping_pong or plan.problem.c:
        return 0
    return plan.subtiles - 1


def _overlaps(plan: WgmmaKernel) -> bool:
    """Whether a kernel with roles has programs that load while those of the one ahead still end."""
    return plan.specialized and plan.read_early is not None and plan.trigger == "loads"


def _stream_row(plan: WgmmaKernel) -> Stream:
    alone = plan.occupancy == 1
    multiply, least = _stream_mma_ns(plan)
    sums, sums_of_program = _splits_ns(plan)
    # A program without roles is launched early in a place of its own, or takes one of the kernel ahead.
    takes_places = plan.read_early is not None and not plan.specialized
    return Stream(
        swap_ab=plan.swap_ab,
        line=_line(plan),
        rows=plan.program_tile_m,
        columns=plan.program_tile_n,
        together=plan.tiles_together,
        depth=plan.cta_tile_k,
        ctas=plan.cluster_size,
        programs=plan.gpu.clusters(plan.cluster_size),
        occupancy=plan.occupancy,
        splits=plan.splits,
        multiply=multiply,
        least_multiply=least,
        issue=STREAM_STEP_NS,
        drain=0 if plan.outstanding_mmas or plan.row_shares > 1 else STREAM_DRAIN_NS,
        latency=STREAM_LATENCY_NS,
        loading=plan.stage_bytes / SM_BYTES_PER_NS,
        stages=plan.stages,
        outstanding=plan.outstanding_mmas,
        neighbours=_bytes_of_neighbours(plan) / 2 / TPC_BYTES_PER_NS if alone else 0,
        sent_bytes=_sent_bytes(plan),
        start=STREAM_START_NS + (ROLES_START_NS if plan.specialized else 0),
        next_round=STREAM_ROUND_NS,
        sums=sums,
        sums_of_program=sums_of_program,
        delivery=EARLY_DELIVERY if _overlaps(plan) else 1,
        early=EARLY_NS if takes_places or _overlaps(plan) else 0,
        early_places=EARLY_PLACES if takes_places else 0,
        early_loss=EARLY_LOSS if takes_places else 0,
        early_steps=EARLY_COVER * plan.stages if takes_places else 0,
    )


def _stream_mma_ns(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the tensor cores' time for a K step, and the least to issue its MMAs or to read shared memory.

    Both have the time in which nobody covers for a lone consumer.
    """
    if plan.swap_ab:
        warpgroups = plan.consumer_warps // plan.architecture.warps_per_warpgroup
        instructions = plan.mmas_per_step * warpgroups
        multiply, issue = (
            instructions * (cycles / STREAM_MMA_CYCLES_PER_NS)
            for cycles in (plan.mma_n / 2, LEAST_MMA_CYCLES)
        )
        return multiply, issue
    # [parallel] TMA's writes count, and a lone consumer with an MMA in flight loses nothing between its
    # steps: 23 kernels are known to 4.4 % with both, and to 5.6 % without.
    written = plan.reduces_apart * plan.stage_bytes / plan.architecture.smem_bytes_per_cycle
    smem = smem_cycles(plan) + SMEM_WRITE_SHARE * written
    covered = plan.row_shares > 1 or (plan.reduces_apart and plan.outstanding_mmas)
    lone = 0 if covered else LONE_STEP_NS
    return mma_cycles(plan) / WIDE_MMA_CYCLES_PER_NS + lone, smem / WIDE_MMA_CYCLES_PER_NS + lone


def _sent_bytes(plan: WgmmaKernel) -> float:
    """Return the bytes that L2 sends a program for a K step: a part of them where neighbours share theirs."""
    shares = plan.sorts_parts_by_gpc and plan.order == plan.order_of_neighbours
    return plan.cluster_size * loaded_bytes(plan) * (SENT_SHARE if shares else 1.0)


def _bytes_of_neighbours(plan: WgmmaKernel) -> int:
    """Return the bytes of a K step of two CTAs side by side: what one load brings to both counts once."""
    return 2 * plan.stage_bytes - plan.stage.bytes_shared_along("m" if plan.cluster_m > 1 else "n")


def _splits_ns(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the time to add up the sums of a tile's splits, and more of it for each program."""
    if plan.splits == 1:
        return 0.0, 0.0
    sums = _sums_bytes(plan)
    if plan.reduces_apart:
        return PARALLEL_NS, plan.cluster_size * sums / PARALLEL_BYTES_PER_NS
    if plan.reduction == "atomic":
        return ATOMIC_NS + (ATOMIC_ROLES_NS if plan.specialized else 0) + sums / ATOMIC_BYTES_PER_NS, 0.0
    if plan.specialized:
        return ROLES_SPLIT_NS + plan.splits * sums / ROLES_SPLIT_BYTES_PER_NS, 0.0
    return SPLIT_NS + plan.splits * sums / SPLIT_BYTES_PER_NS, 0.0


def _sums_bytes(plan: WgmmaKernel) -> int:
    """Return the bytes of a CTA tile's sums."""
    return plan.cta_tile_m * plan.cta_tile_n * plan.problem.accumulator.bytes


def estimate(plan: WgmmaKernel, shape: Shape) -> Estimate:
    """Return what a plan is expected to take for a problem [M, N, K]."""
    return estimated(plan, shape, _terms(plan, shape), loaded_bytes(plan))


def _terms(plan: WgmmaKernel, shape: Shape) -> dict[str, float]:
    """Return the cycles by cause; infinite for a cluster of more CTAs than the GPU has SMs."""
    moved = moved_bytes(traffic_of(plan.problem), *shape)
    nanoseconds = causes(row_of(plan), card_of(plan.gpu), moved, *shape)
    hz = plan.gpu.sustained_hz
    return {cause: time * hz / 1e9 for cause, time in nanoseconds.items() if time}


def cycles(plan: WgmmaKernel, shape: Shape) -> float:
    """Return the cycles of a problem [M, N, K], to the cycle, so that equal plans tie."""
    return whole_cycles(_terms(plan, shape))


def cost(plan: WgmmaKernel, shape: Shape) -> tuple[float, ...]:
    """Rank a plan for a problem: the smaller the better, the first difference decides (``COST_ORDER``)."""
    idle_queue = bool(plan.outstanding_mmas) != (plan.row_shares == 1)
    return (
        cycles(plan, shape),
        l2_bytes(plan, shape, loaded_bytes(plan)),
        idle_queue,
        -plan.stages * plan.cta_tile_k,
    )


COST_ORDER = ("time", "L2 bytes", "MMAs in flight", "depth of the ring")
"""What the parts of a cost are: cycles; bytes from L2, which cost power; whether consumers that no
other covers for keep an MMA in flight, and others none; and the K that the ring holds, for deeper hides more.
"""


def excess(plan: WgmmaKernel) -> float:
    """Return by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    if plan.consumers > most_consumers(plan):
        return 0.0  # nothing can be summed up over that many consumers
    return excess_of(
        (plan.smem_bytes, plan.smem_limit_bytes),
        (least_registers(plan), plan.consumer_registers),
        (plan.subtile_n, plan.column_parts[-1]),
        (plan.epilogue_buffers, plan.subtiles),
    )
