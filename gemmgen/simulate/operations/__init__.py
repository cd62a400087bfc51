"""What each operation does, a family a file: importing this package makes the operations known."""

from gemmgen.simulate.operations import (
    arith,
    atomics,
    control,
    loads_stores,
    tensor_cores,
    tensors,
    transfers,
)

FAMILIES = (arith, atomics, control, loads_stores, tensor_cores, tensors, transfers)
