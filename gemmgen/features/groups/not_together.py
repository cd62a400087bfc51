"""The capabilities with which no Hopper kernel has groups of rows and of K."""

from __future__ import annotations

from typing import Final

from gemmgen.features.composed_tiles.traits import STAGGERED
from gemmgen.features.dependent_launch.traits import EARLY_LOADS
from gemmgen.features.gates.traits import GATE, GATE_BACKWARD, N_CONTIGUOUS_BLOCKS
from gemmgen.features.groups.traits import (
    ADJACENT_GROUPS,
    ANY_K_GROUPS,
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
    K_CONTIGUOUS_A,
    K_CONTIGUOUS_B,
    M_CONTIGUOUS_A,
    NO_ROLES,
    OTHER_ORDER,
    SINGLE_TILE,
    TILED,
)
from gemmgen.features.misaligned.traits import MISALIGNED
from gemmgen.features.output_scales.traits import SCALES_OF_D
from gemmgen.features.rows_by_index.traits import A_ROWS, D_ROWS
from gemmgen.features.split_k.traits import SPLITS
from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
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
)
