"""The splits whose sums a thread reads together when it adds up the sums of a tile."""

from __future__ import annotations

from typing import Final

from gemmgen.plan.wgmma.resources import WgmmaKernel

SPLIT_REGISTERS: Final = 128
"""Registers of a thread that hold sums of splits on their way from memory.

[gluon] The loads of an unrolled loop are issued together: with 4 times 64 sums registers spill, with twice
they do not.
"""
REGISTERS_BESIDE_SPLITS: Final = 32
"""Registers of a thread that hold none of those sums.

[gluon] Of 80 registers 64 can hold sums, while 88, with an epilogue of four steps, and 96 spill; of 128
registers 96 can, and 128 spill; of 168, 128 can.
"""
LEAST_OF_UNLIKE_SPLITS: Final = 3
"""Splits in a group from which on the last one may have less.

[gluon] Of 18 random kernels nine spill 4 to 988 bytes where 64 sums of 5, 7 and 12 splits are read by twos
under a mask, and not one by one; 32 sums of 7 splits, read one by one, spill 8 to 60 where the compiler
unrolls that loop, and by threes and fours do not.
"""


def splits_at_once(plan: WgmmaKernel) -> int:
    """Return the splits whose sums the last program of a tile reads together: as many as registers hold.

    They are fewer where that makes all groups alike, unless it halves groups of three and more: the last
    group is loaded under a mask then, and two groups with one are loaded together.
    """
    registers, splits = plan.consumer_registers - REGISTERS_BESIDE_SPLITS, plan.splits
    most = max(1, min(SPLIT_REGISTERS, registers) // max(1, plan.accumulator_elements))
    alike = max(count for count in range(1, splits + 1) if splits % count == 0 and count <= most)
    return alike if 2 * alike > most or alike == splits or most < LEAST_OF_UNLIKE_SPLITS else most
