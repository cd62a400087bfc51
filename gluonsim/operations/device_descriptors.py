"""TMA descriptors that a kernel makes in global memory."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Sequence

from gluonsim.accesses import AWAITED_BY
from gluonsim.findings import Kind, refusal
from gluonsim.ir.parse import Operation
from gluonsim.operations import operation
from gluonsim.operations.loads_stores import Pointer
from gluonsim.program import Agent
from gluonsim.tensors.descriptors import Descriptor, Home


@operation("ttg.global_scratch_alloc", ignored=("alignment", "nbytes", "ttg.global_scratch_memory_offset"))
def global_scratch_alloc(agent: Agent, op: Operation) -> Home:
    """Return a place: executing it again, in a loop, changes nothing there."""
    return agent.cluster.homes.setdefault((op, agent.cta), Home())


_ELEMENTS_OF_TF32 = (11, 12)
"""As the CUDA driver numbers the element types that round [cuda]."""


@operation("ttng.tensormap_create", "elem_type", "fill_mode", ignored=("interleave_layout", "swizzle_mode"))
def tensormap_create(agent: Agent, op: Operation) -> None:
    """Make a descriptor of a pointer; the driver's order is innermost first, and strides are bytes."""
    (scratch_name,), (address,), _, extents, strides, _ = op.segments
    home: Home = agent.get(scratch_name)
    _check_uses(agent, op, home)
    pointer: Pointer = agent.get(address)
    size = pointer.flat.element_size()
    _check_alignment(agent, op, pointer, [int(agent.get(name)) for name in strides])
    # Extents are unsigned; a transfer is out of bounds where it reaches outside of the storage.
    shape = [int(agent.get(name)) & 0xFFFFFFFF for name in reversed(extents)]
    steps = [int(agent.get(name)) // size for name in reversed(strides)] + [1]
    if min(steps) < 0:
        message = f"a descriptor over {pointer.name} has the strides {steps}: none may be negative"
        raise refusal(message, op.location, "bad-operand")
    padding = float("nan") if op.attributes["fill_mode"] else 0.0
    rounds = op.attributes["elem_type"] in _ELEMENTS_OF_TF32
    first = int(pointer.offset)
    home.descriptor = Descriptor(
        pointer.name, pointer.flat, first, tuple(shape), tuple(steps), padding, rounds, home=home
    )


_ALIGNMENT = 16
"""Bytes that the address and the strides of a descriptor must be multiples of [cuda]."""


def _check_alignment(agent: Agent, op: Operation, pointer: Pointer, strides: Sequence[int]) -> None:
    # A tensor's storage begins at a multiple of 512 bytes on the device, whatever it does here.
    address = int(pointer.offset) * pointer.flat.element_size()
    values = {"address": address, "stride": next((each for each in strides if each % _ALIGNMENT), 0)}
    for what, value in values.items():
        if past := value % _ALIGNMENT:
            text = (
                f"{pointer.name}: the {what} of a descriptor is {past} bytes past a multiple of "
                f"{_ALIGNMENT}, which TMA does not allow"
            )
            agent.report(Kind.UNALIGNED_TRANSFER, pointer.name, (op.location,), text)


@operation("ttng.tensormap_fenceproxy_acquire")
def tensormap_fence(agent: Agent, op: Operation) -> None:
    """Nothing: the descriptor is there at once, and the compiler always puts the fence."""


@operation("ttng.reinterpret_tensor_descriptor")
def reinterpret_tensor_descriptor(agent: Agent, op: Operation) -> Descriptor:
    home = agent.get(op.operands[0])
    if not isinstance(home, Home) or home.descriptor is None:
        raise refusal("a descriptor that the kernel does not make is not known", op.location)
    return home.descriptor


def _check_uses(agent: Agent, op: Operation, home: Home) -> None:
    """Report transfers that may still read the descriptor which another one replaces."""
    for access in home.uses.values():
        if not access.covered(agent.knowledge.clock):
            assert home.descriptor is not None
            name = home.descriptor.name
            text = f"{name}: its descriptor is made anew while {access} may still read the one before"
            if access.agent == agent.key and access.what in AWAITED_BY:
                text += f": {AWAITED_BY[access.what]} must come first"
            agent.report(Kind.WRITE_AFTER_READ, name, (op.location, access.location), text)
    home.uses.clear()
