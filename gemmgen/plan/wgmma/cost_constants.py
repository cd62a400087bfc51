"""Constants of the cost of Hopper kernels, each with the records that it was fitted to.

`gemmgen.plan.wgmma.cost` reads them as attributes of this module, so that a fit can change them for a while.
Constants of the time that a feature takes are in the feature's folder. Times are in nanoseconds of an H200.
``python -m benchmarks.fit`` fits the constants to records. Those with a commit ahead of the path are in git's
history alone (``git show COMMIT:PATH``):

* [many-rows] 118 shapes of 128 rows or more by 24 pinned kernels of bf16:
  ``benchmarks/fit/h200_many_rows.json``;
* [composed] kernels of composed tiles at nine shapes: ``7a8a2c58:benchmarks/fit/h200_composed.jsonl``;
* [staggered] staggered tiles and others, most of as many columns, at 13 shapes of bf16 and of e4m3:
  ``benchmarks/fit/h200_staggered.json``, ``benchmarks/fit/h200_staggered_e4m3.json``;
* [first-choices] an earlier planner's first five at 137 shapes of 128 rows or more, 114 kernels:
  ``benchmarks/fit/h200_first_choices.json``;
* [unfilled-waves] 42 pinned kernels at 22 shapes whose tiles fill no wave, or just one:
  ``benchmarks/fit/h200_unfilled_waves.json``;
* [one-wave] 33 pinned kernels, with roles and without, at 33 shapes of which a wave holds all tiles:
  ``benchmarks/fit/h200_one_wave.json``;
* [wave-stores] 42 pinned kernels of bf16 and e4m3 that store D by one or several buffers, at 11 shapes of one
  wave: ``benchmarks/fit/h200_wave_stores.json``;
* [few-rows] up to 64 rows: 3,856 times of about 200 kernels at 155 shapes of bf16 and e4m3, which no record
  has all; ``benchmarks/fit/h200_few_rows.json`` has what was timed later;
* [long-k] 31 kernels with parts of K at 256 x 256 x 32768 and 512 x 512 x 16384 in bf16
  (``7a8a2c58:benchmarks/fit/h200_long_k_256.jsonl`` and ``..._512.jsonl``), and 26 more, some of them without
  their sums or with two K steps. Only medians of the 26 were kept (``h200_long_k_taken_apart.json`` and
  ``..._without_roles.json`` there). The constants give the times with roles to 11 %, and those without
  roles, to which they were not fitted, to 20 %;
* [parallel] kernels whose sums a second one adds up, at 256 x 256 x 32768 and 512 x 512 x 16384, written by
  hand from generated ones, of which only medians are kept (``benchmarks/fit/h200_parallel.json``), and the
  first eight at five shapes: ``benchmarks/suites/h200_long_k.jsonl``;
* [misaligned] modules of ``misaligned: copy``, with A and B aligned before or not:
  ``benchmarks/reading/misaligned.json``, ``benchmarks/h100_bf16_misaligned.json``;
* [rows-outside] 48 kernels of bf16 at 77 shapes. The shapes with fewer rows than a kernel's
  tile show the effect; ``benchmarks/reading/strangers_bf16.json`` has the times;
* [session] ratios to cuBLAS of kernels that no record has: 8192 x 8192 x 8192, 4096 x 4096 x 4096 and
  8192 x 8192 x 1024 of one session, kept in ``tests/test_candidates.py``.

They order plans to within a few percent; a time that they give is not a measurement.
"""

from __future__ import annotations

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
SPLIT_LINE_NS = 1.3
"""[many-rows] [first-choices] For a CTA to load a line of 128 bytes that a row of its TMA boxes touches, if
all SMs load and every second row begins inside a sector of 32 bytes: with K = 4104 and 1032, a row of 128
bytes touches 1.875 lines in the mean. Kernels of these two shapes took 1.32 times as long as predicted
without it (root mean square 35 %), and 1.00 times with it (8 %); rows that begin at sectors take no longer.
"""
LEAST_SPLIT_SHARE = 0.7
"""[misaligned] Least share of ``SPLIT_LINE_NS`` if few SMs load: at 2000 x 1000 x 2002, 64 SMs take 0.9 ns a
line.
"""
COPY_START_NS = 1_550
"""[misaligned] To launch a copy of one or two misaligned matrices. With it and ``DRAM_BYTES_SHARE``,
the model knows copies of 5 to 134 MB (read and written) to 8 %.
"""
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
OUTSIDE_BYTES = 3.0
"""[rows-outside] Bytes as which L2 takes a byte of A's tile that lies outside of A, beside its own."""
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


ROLES_START_NS = 1_200
"""[long-k] Further time that a program with roles takes to start and to end."""
WIDE_MMA_CYCLES_PER_NS = 1.75
"""[long-k] At which instructions of 64 and more columns are issued: the clock of a short kernel."""
LONE_STEP_NS = 50
"""[long-k] In which a K step's MMAs are not issued, where no other consumer covers for them."""
