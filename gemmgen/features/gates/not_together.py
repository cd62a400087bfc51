"""The capabilities with which no Hopper kernel has gates and their gradients."""

from __future__ import annotations

from typing import Final

from gemmgen.features.gates.traits import GATE, GATE_AS_LOADED, GATE_BACKWARD, GATE_OF_BLOCKS
from gemmgen.features.kernel_traits import CLUSTER_N, EIGHT_BITS, INTEGERS, ONE_STAGE, SINGLE_TILE, WARPS_N
from gemmgen.features.misaligned.traits import MISALIGNED
from gemmgen.features.rows_by_index.traits import D_ROWS
from gemmgen.features.split_k.traits import SPLITS
from gemmgen.features.swap_ab.traits import SWAP_AB
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
    NotTogether(MISALIGNED, GATE, "copies of misaligned tensors need one accumulator"),
    NotTogether(SPLITS, GATE, "split-K needs one accumulator"),
    NotTogether(SINGLE_TILE, GATE, "the function of a single tile checks a B of N columns"),
    NotTogether(
        SWAP_AB,
        GATE_AS_LOADED,
        "the columns of the accumulator are M then, so both sums of an element cannot lie side by side",
    ),
    NotTogether(ONE_STAGE, GATE_OF_BLOCKS, "two blocks of columns of B need a ring of several stages"),
    NotTogether(CLUSTER_N, GATE_OF_BLOCKS, "the halves of an accumulator would be in different CTAs"),
    NotTogether(WARPS_N, GATE_OF_BLOCKS, "the halves of an accumulator would be in different warps"),
    NotTogether(MISALIGNED, GATE_BACKWARD, "copies of misaligned tensors need one matrix in C and in D"),
    NotTogether(SPLITS, GATE_BACKWARD, "split-K needs one matrix in C and in D"),
    NotTogether(SINGLE_TILE, GATE_BACKWARD, "the function of a single tile checks a C of N columns"),
    NotTogether(
        SWAP_AB,
        GATE_BACKWARD,
        "the columns of D are rows of the accumulator then, where no matrix lies beside another",
    ),
    NotTogether(D_ROWS, GATE_BACKWARD, "but threads that store rows by an index store one matrix"),
    NotTogether(
        EIGHT_BITS,
        GATE_BACKWARD,
        "gradients of 8 bits need scales, which are not supported for two matrices",
    ),
    NotTogether(INTEGERS, GATE_BACKWARD, "gradients are floats"),
)
