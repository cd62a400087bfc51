"""What each operation does, a family a file: importing this package makes the operations known."""

from gemmgen.simulate.operations import arith, barrier, control, convert, memory, tensor, tma, wgmma

FAMILIES = (arith, barrier, control, convert, memory, tensor, tma, wgmma)
