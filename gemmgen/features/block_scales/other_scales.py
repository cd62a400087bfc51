"""Checks of kernels with scales of blocks: scales that are packed, and scales of other strides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from torch import Tensor

from gemmgen.numerics.case import Case
from gemmgen.numerics.encoding import count_differing
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import Check
from gemmgen.problem.operations import BLOCK_SCALES


def packed_scales(case: Case) -> Iterator[Check]:
    """Check that scales that ``pack_scales`` has packed give the bits of plain ones, alone and together."""
    if case.pack_scales is None:
        raise AttributeError("the module has no function `pack_scales`")
    inputs = case.inputs()
    plain = case.run(inputs).clone()
    scaled = tuple(_scales_of(inputs))
    for names in dict.fromkeys((*((name,) for name in scaled), scaled)):
        count = _differing(case, inputs.packed(case.pack_scales, names), plain)
        yield case.check(f"packed {' and '.join(names)}: elements that differ", count, 0)


def other_scales(case: Case) -> Iterator[Check]:
    """Check scales of other strides than the kernel reads.

    A call must refuse them, with an error that names ``arrange_scales``. After ``arrange_scales`` has laid
    them out, the call must give the same bits as with scales that were never moved.
    """
    if case.arrange_scales is None:
        raise AttributeError("the module has no function `arrange_scales`")
    inputs = case.inputs()
    first = case.run(inputs).clone()
    for name, scales in _scales_of(inputs).items():
        for label, other in (("by rows", scales.contiguous()), ("by columns", scales.mT.contiguous().mT)):
            if not _lie_alike(other, scales):
                accepted = not _refused(case, _with_scales(inputs, name, other), name)
                yield case.check(f"{name} {label}: accepted, though the kernel cannot read them", accepted, 0)
            arranged = _with_scales(inputs, name, case.arrange_scales(name, other))
            count = _differing(case, arranged, first)
            yield case.check(f"{name} {label}, arranged: elements that differ", count, 0)


def _scales_of(inputs: Inputs) -> dict[str, Tensor]:
    return {name: inputs.extras[name] for name in BLOCK_SCALES if name in inputs.extras}


def _with_scales(inputs: Inputs, name: str, scales: Tensor) -> Inputs:
    return replace(inputs, extras=MappingProxyType({**inputs.extras, name: scales}))


def _differing(case: Case, inputs: Inputs, first: Tensor) -> int:
    """Return the number of elements that have other bits than the ``first`` result."""
    return count_differing(case.run(inputs), first)


def _lie_alike(left: Tensor, right: Tensor) -> bool:
    """Return True if the elements of two tensors of one shape have the same distances in memory."""
    strides = zip(left.shape, left.stride(), right.stride(), strict=True)
    return all(one == other for extent, one, other in strides if extent > 1)


def _refused(case: Case, inputs: Inputs, name: str) -> bool:
    """Return True if the call raises a ValueError that names the function to arrange the scales with.

    Any other ValueError is raised again: it is no refusal of these scales.
    """
    try:
        case.run(inputs)
    except ValueError as error:
        if f'pass arrange_scales("{name}", {name})' not in str(error):
            raise
        return True
    return False
