"""What each operation does, a family a file: importing this package makes the operations known."""

from gemmgen.simulate.operations import (
    arith,
    barrier,
    clc,
    control,
    convert,
    memory,
    tcgen05,
    tensor,
    tensor_memory,
    tma,
    wgmma,
)

FAMILIES = (arith, barrier, clc, control, convert, memory, tcgen05, tensor, tensor_memory, tma, wgmma)
