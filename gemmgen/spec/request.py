"""From a spec to its request."""

from __future__ import annotations

from gemmgen.hardware import GPUS, SCALE_FORMATS, DType
from gemmgen.hardware.elements import DTYPES
from gemmgen.problem import BlockScale, Groups, Matmul, Operand, Ranges, Request
from gemmgen.problem import epilogue as problem
from gemmgen.problem.epilogue import ACCUMULATOR, Listed, blocks_are, d_is, saving
from gemmgen.problem.operations import stated_parameters
from gemmgen.spec.expression import parsed
from gemmgen.spec.model import BlockScale as BlockScaleOfSpec
from gemmgen.spec.model import Epilogue, InputB, Spec
from gemmgen.spec.model import Groups as GroupsOfSpec


def request_of(spec: Spec) -> Request:
    """Return the request of the spec."""
    return Request(
        matmul=_matmul(spec),
        gpu=GPUS[spec.target],
        title=spec.title,
        check_shapes=spec.check.shapes if spec.check else (),
        bench_shapes=spec.bench.shapes if spec.bench else (),
        listed=_listed(spec.epilogue),
        ranges=Ranges(spec.problem.m, spec.problem.n, spec.problem.k) if spec.problem else None,
    )


def _matmul(spec: Spec) -> Matmul:
    """Return the matmul of the spec."""
    a, b, c, d = spec.operands.a, spec.operands.b, spec.operands.c, spec.operands.d
    exact = DTYPES[a.dtype].integer and DTYPES[b.dtype].integer
    mma = GPUS[spec.target].architecture.mma
    return Matmul(
        a=_operand("a", a, b, mma),
        b=_operand("b", b, a, mma),
        c=DTYPES[c.dtype] if c else None,
        d=DTYPES[d.dtype],
        accumulator=DTYPES[spec.accumulator or ("int32" if exact else "fp32")],
        epilogue=_epilogue(spec.epilogue, DTYPES[d.dtype], c=c is not None),
        deterministic=spec.deterministic,
        batch_invariant=spec.batch_invariant,
        copies_misaligned=spec.operands.misaligned == "copy",
        backward=spec.backward,
        groups=_groups(spec.groups) if spec.groups else None,
        d_scale=_scale(d.scale),
    )


def _groups(stated: GroupsOfSpec) -> Groups:
    """Return the groups of a spec."""
    return Groups(
        stated.kind,
        stated.count,
        stated.broadcast,
        a_rows=stated.a_rows,
        d_rows=stated.d_rows,
        skew=stated.skew,
        shares=stated.shares or (),
    )


def _epilogue(stated: Epilogue, d: DType, *, c: bool) -> problem.Epilogue:
    """Return the epilogue of a spec from either form; ``c`` is true if the spec has a C."""
    if isinstance(stated.d, tuple) and stated.c is not None:
        values = tuple(parsed(text, stated.accumulators or (ACCUMULATOR,), stated.c) for text in stated.d)
        return blocks_are(values, stated.c, interleaved=stated.columns == "interleaved")
    if isinstance(stated.d, str):
        accumulators = stated.accumulators or (ACCUMULATOR,)
        interleaved = stated.columns == "interleaved"
        value = parsed(stated.d, accumulators, stated.c or ())
        epilogue = d_is(value, accumulators, interleaved=interleaved)
        return saving(epilogue, stated.save, d) if stated.save else epilogue
    listed = _listed(stated)
    assert listed is not None
    return listed.lowered(c=c)


def _listed(epilogue: Epilogue) -> Listed | None:
    """Return the list of operations that a spec has; None if it has an expression."""
    if epilogue.d is not None:
        return None
    return Listed(
        alpha=1.0 if epilogue.alpha is None else epilogue.alpha,
        beta=1.0 if epilogue.beta is None else epilogue.beta,
        ops=tuple(op for op, _ in epilogue.steps),
        parameters=tuple(stated_parameters(epilogue.steps)),
    )


def _operand(name: str, operand: InputB, other: InputB, mma: str) -> Operand:
    """Return A or B; 4-bit elements are padded if the other operand has 8 bits."""
    scale = _scale(operand.scale)
    decoded = scale is not None and scale.format.applied_by(mma, name) == "decode"
    padded = not decoded and DTYPES[operand.dtype].bits == 4 and DTYPES[other.dtype].bits != 4
    if operand.packing is not None:
        padded = operand.packing == "padded"
    into = DTYPES[scale.format.decoded_to] if scale and decoded else None
    return Operand(DTYPES[operand.dtype], operand.major or "k", scale, padded, into)


def _scale(said: BlockScaleOfSpec | None) -> BlockScale | None:
    """Return the scales of an operand or of D; a type or a vector that is left out is the format's."""
    if said is None:
        return None
    scale_format = SCALE_FORMATS[said.format]
    return BlockScale(
        format=scale_format,
        dtype=DTYPES[said.dtype or scale_format.dtype],
        vector=said.vector or scale_format.vector,
    )
