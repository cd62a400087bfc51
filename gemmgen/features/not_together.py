"""The capabilities that no Hopper kernel has together: a row for each pair, and the rules that read them."""

from __future__ import annotations

from typing import Final

from gemmgen.features.block_scales.traits import BLOCK_SCALES, COLUMN_SCALES, SCALED_GROUPS_OF_ROWS
from gemmgen.features.composed_tiles.traits import COMPOSED, STAGGERED
from gemmgen.features.dependent_launch.traits import DEPENDENT, EARLY_LOADS
from gemmgen.features.gates.traits import GATE, GATE_BACKWARD, GATE_OF_BLOCKS, N_CONTIGUOUS_BLOCKS
from gemmgen.features.groups.traits import (
    ADJACENT_GROUPS,
    ANY_K_GROUPS,
    BATCHED,
    BROADCAST,
    COUNTED_GROUPS,
    GROUPS,
    GROUPS_OF_K,
    GROUPS_OF_ROWS,
    M_OFFSETS,
    OTHER_GROUPS,
)
from gemmgen.features.kernel_traits import (
    ADDED_C,
    BACKWARD,
    CLUSTER_M,
    CLUSTER_N,
    EIGHT_BITS,
    INTEGERS,
    K_CONTIGUOUS_A,
    K_CONTIGUOUS_B,
    LOADED,
    M_CONTIGUOUS_A,
    NO_ROLES,
    ONE_STAGE,
    OTHER_ORDER,
    PING_PONG,
    REGISTERS_A,
    SEVERAL_BUFFERS,
    SINGLE_TILE,
    TILED,
    WARPS_N,
)
from gemmgen.features.misaligned.traits import MISALIGNED
from gemmgen.features.output_scales.traits import SCALES_OF_D
from gemmgen.features.promotion.traits import PROMOTION
from gemmgen.features.rows_by_index.traits import A_ROWS, D_ROWS
from gemmgen.features.saved_sums.traits import SAVED_SUMS
from gemmgen.features.split_k.traits import PARALLEL_REDUCTION, SPLITS
from gemmgen.features.swap_ab.traits import SWAP_AB
from gemmgen.plan.fix import at_least, leave_out, use
from gemmgen.plan.not_together import NotTogether, rules_of

ONE_CTA: Final = "rows by an index need clusters of one CTA"
STORED: Final = "a composed tile is stored in sub-tiles, which would part the columns of one"

NOT_TOGETHER: Final = (
    # --- groups
    NotTogether(MISALIGNED, GROUPS, "copies of misaligned tensors are supported only without groups"),
    NotTogether(SPLITS, GROUPS, "split-K is supported only without groups"),
    NotTogether(STAGGERED, GROUPS, "but a group may end between the two tiles of a rectangle"),
    NotTogether(
        OTHER_ORDER, GROUPS, "but within a group, tiles go down some rows of tiles and then to the right"
    ),
    NotTogether(
        SINGLE_TILE,
        GROUPS,
        "but a program of a single tile has one A and one B",
        use("persistent") | leave_out("groups"),
    ),
    NotTogether(
        TILED,
        COUNTED_GROUPS,
        "but programs walk over the tiles of groups, whose ends the host does not know",
    ),
    NotTogether(
        NO_ROLES,
        COUNTED_GROUPS,
        "but a producer and consumers walk over the tiles of groups, whose ends the host does not know",
    ),
    NotTogether(
        EARLY_LOADS,
        COUNTED_GROUPS,
        "but the kernel ahead may still write where groups end, and no load begins before that is read",
    ),
    NotTogether(
        BROADCAST,
        COUNTED_GROUPS,
        "but groups that a tensor divides have rows of A, or columns of A and rows of B, of their own",
        leave_out() | use("batched", field="groups.kind"),
    ),
    NotTogether(GATE, GROUPS_OF_K, "groups of K need one accumulator"),
    NotTogether(
        GATE_BACKWARD,
        GROUPS_OF_K,
        "but these matrices have a row for each row of A, and groups of K share all rows",
    ),
    NotTogether(
        SCALES_OF_D,
        GROUPS_OF_K,
        "scales of D need groups of rows",
        leave_out() | use("m_offsets", field="groups.kind"),
    ),
    NotTogether(
        N_CONTIGUOUS_BLOCKS,
        GROUPS_OF_ROWS,
        "a gate of two blocks of columns in groups needs a K-contiguous B",
    ),
    NotTogether(
        M_CONTIGUOUS_A,
        ADJACENT_GROUPS,
        "but TMA loads along M from multiples of 16 bytes on, and a group begins at any row",
    ),
    NotTogether(
        K_CONTIGUOUS_A,
        ANY_K_GROUPS,
        "but TMA loads along K from multiples of 16 bytes on, and a group begins at any K",
    ),
    NotTogether(
        K_CONTIGUOUS_B,
        ANY_K_GROUPS,
        "but TMA loads along K from multiples of 16 bytes on, and a group begins at any K",
    ),
    NotTogether(
        ADDED_C,
        M_OFFSETS,
        "but TMA would also read rows of C of the next group, into which another program may store its D",
    ),
    NotTogether(BACKWARD, OTHER_GROUPS, "a backward of groups needs m_offsets"),
    NotTogether(
        A_ROWS,
        OTHER_GROUPS,
        "a_rows needs m_offsets",
        leave_out() | use("m_offsets", field="groups.kind"),
    ),
    NotTogether(
        D_ROWS,
        OTHER_GROUPS,
        "d_rows needs m_offsets",
        leave_out() | use("m_offsets", field="groups.kind"),
    ),
    # --- rows by an index
    NotTogether(CLUSTER_M, A_ROWS, ONE_CTA),
    NotTogether(CLUSTER_N, A_ROWS, ONE_CTA),
    NotTogether(REGISTERS_A, A_ROWS, "rows of A by an index need A in shared memory"),
    NotTogether(
        BACKWARD,
        A_ROWS,
        "but the gradients of A and B would read the gradient of D by the index, which no kernel does",
    ),
    NotTogether(
        D_ROWS,
        A_ROWS,
        "but the number of rows of the product is that of A or of D, and both have rows of their own",
    ),
    NotTogether(CLUSTER_M, D_ROWS, ONE_CTA),
    NotTogether(CLUSTER_N, D_ROWS, ONE_CTA),
    NotTogether(
        BACKWARD,
        D_ROWS,
        "but the gradients of A and B would read the gradient of D by the index, which no kernel does",
    ),
    NotTogether(
        SEVERAL_BUFFERS,
        D_ROWS,
        "but threads read a buffer back before they fill the next one, which then needs none of its own",
    ),
    # --- gates
    NotTogether(MISALIGNED, GATE, "copies of misaligned tensors need one accumulator"),
    NotTogether(SPLITS, GATE, "split-K needs one accumulator"),
    NotTogether(SINGLE_TILE, GATE, "the function of a single tile checks a B of N columns"),
    NotTogether(
        SWAP_AB,
        GATE,
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
    # --- saved sums
    NotTogether(D_ROWS, SAVED_SUMS, "but threads that store rows by an index store D alone"),
    NotTogether(
        EIGHT_BITS,
        SAVED_SUMS,
        "saved sums have the type of D, and 8 bits are too few for a backward without scales",
    ),
    NotTogether(
        SAVED_SUMS,
        LOADED,
        "a backward would need it beside the sums, and only the sums are stored",
    ),
    # --- block scales
    NotTogether(
        COMPOSED,
        BLOCK_SCALES,
        "block scales need a tile whose columns are one power of two",
        use(128, 64),
    ),
    NotTogether(SINGLE_TILE, BLOCK_SCALES, "a block's scales come with a stage of a ring"),
    NotTogether(ONE_STAGE, BLOCK_SCALES, "a block's scales come with a stage of a ring"),
    NotTogether(A_ROWS, BLOCK_SCALES, "block scales need rows of A and D that lie group by group"),
    NotTogether(D_ROWS, BLOCK_SCALES, "block scales need rows of A and D that lie group by group"),
    NotTogether(BATCHED, BLOCK_SCALES, "block scales need groups that a tensor divides (`offs` or `rows`)"),
    NotTogether(GATE, COLUMN_SCALES, "a gate needs scales of B for blocks of columns"),
    NotTogether(CLUSTER_M, SCALED_GROUPS_OF_ROWS, "scales of groups of rows need clusters of one CTA"),
    NotTogether(CLUSTER_N, SCALED_GROUPS_OF_ROWS, "scales of groups of rows need clusters of one CTA"),
    # --- scales of D
    NotTogether(
        SWAP_AB,
        SCALES_OF_D,
        "the columns of D are rows of the instruction, which warps divide, and one warp has a scale",
    ),
    NotTogether(CLUSTER_N, SCALES_OF_D, "the columns of a scale would be in different CTAs"),
    NotTogether(WARPS_N, SCALES_OF_D, "the columns of a scale would be in different warps"),
    NotTogether(
        PARALLEL_REDUCTION,
        SCALES_OF_D,
        "the kernel that adds up the sums of splits stores pieces of rows, narrower than a scale",
    ),
    NotTogether(SINGLE_TILE, SCALES_OF_D, "the function of a single tile finds no place for scales"),
    NotTogether(D_ROWS, SCALES_OF_D, "scales of D need rows that lie group by group"),
    # --- tiles of several parts
    NotTogether(CLUSTER_N, COMPOSED, f"{STORED} CTA from another's", use(1)),
    NotTogether(WARPS_N, COMPOSED, f"{STORED} warp from another's", use(1)),
    NotTogether(SPLITS, COMPOSED, "split-K needs a tile whose columns are one power of two"),
    NotTogether(CLUSTER_M, STAGGERED, "staggered tiles need clusters of one CTA"),
    NotTogether(PROMOTION, STAGGERED, "promotion is supported only without staggered tiles"),
    # --- split-K
    NotTogether(PING_PONG, SPLITS, "split-K needs consumers that share a tile"),
    NotTogether(ONE_STAGE, SPLITS, "split-K needs kernels that load ahead", at_least(2)),
    NotTogether(
        PARALLEL_REDUCTION,
        MISALIGNED,
        "copies of misaligned tensors need a kernel that stores D itself",
    ),
    NotTogether(
        PARALLEL_REDUCTION,
        DEPENDENT,
        "a parallel reduction needs a start after all earlier kernels",
    ),
    NotTogether(
        PARALLEL_REDUCTION,
        EARLY_LOADS,
        "the second kernel of the call before may still read its sums then",
        use("ordered") | leave_out("dependent_launch"),
    ),
)
"""Each pair; the message begins with the first trait, and names its field."""

RULES: Final = rules_of(NOT_TOGETHER)
"""The rules of the pairs."""
