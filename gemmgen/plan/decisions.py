"""What a spec states: the problem, and the decisions of a plan that it pins."""

from __future__ import annotations

from gemmgen.plan.dtype import DTYPES
from gemmgen.plan.problem import BlockScale, Operand, Problem, Shape
from gemmgen.spec import Spec
from gemmgen.spec.model import InputB
from gemmgen.target import GPUS, SCALE_FORMATS

DEFAULT_SHAPE = (8192, 8192, 8192)
"""The problem [M, N, K] that an open spec is planned for when it names none under ``bench``."""


def problem_of(spec: Spec) -> Problem:
    """Return what the spec says that the kernel computes."""
    a, b, c, d = spec.operands.a, spec.operands.b, spec.operands.c, spec.operands.d
    exact = a.dtype == "int8" and b.dtype == "int8"
    return Problem(
        title=spec.title,
        gpu=GPUS[spec.target],
        a=_operand(a, b),
        b=_operand(b, a),
        c=DTYPES[c.dtype] if c else None,
        d=DTYPES[d.dtype],
        accumulator=DTYPES[spec.accumulator or ("int32" if exact else "fp32")],
        alpha=1.0 if spec.epilogue.alpha is None else spec.epilogue.alpha,
        beta=1.0 if spec.epilogue.beta is None else spec.epilogue.beta,
        ops=spec.epilogue.ops,
        check_shapes=spec.check.shapes if spec.check else (),
        bench_shapes=spec.bench.shapes if spec.bench else (),
    )


def _operand(operand: InputB, other: InputB) -> Operand:
    """Return an operand; 4-bit elements are padded where those of the other one have 8 bits."""
    padded = operand.dtype == "e2m1" and other.dtype != "e2m1"
    if operand.packing is not None:
        padded = operand.packing == "padded"
    scale = None
    if stated := operand.scale:
        scale_format = SCALE_FORMATS[stated.format]
        scale = BlockScale(
            format=scale_format,
            dtype=DTYPES[stated.dtype or scale_format.dtype],
            vector=stated.vector or scale_format.vector,
        )
    return Operand(DTYPES[operand.dtype], operand.major or "k", scale, padded)


def pinned(spec: Spec) -> dict[str, object]:
    """Return the decisions that the spec states, by the name of the plan's field."""
    roles = spec.warp_specialization
    stated = {
        "cta_tile_m": spec.tile.m,
        "cta_tile_n": spec.tile.n,
        "cta_tile_k": spec.tile.k,
        "mma_n": spec.mma.n,
        "promote_k": spec.mma.promote_k,
        "warps_m": spec.warps.m,
        "warps_n": spec.warps.n,
        "cluster_m": spec.cluster.m,
        "cluster_n": spec.cluster.n,
        "a_source": spec.operands.a.source,
        "a_swizzle_bytes": spec.operands.a.swizzle,
        "b_swizzle_bytes": spec.operands.b.swizzle,
        "stages": spec.buffering.stages,
        "outstanding_mmas": spec.buffering.outstanding_mmas,
        "accumulators": spec.buffering.accumulators,
        "epilogue_buffers": spec.buffering.epilogue,
        "subtile_n": spec.epilogue.subtile_n,
        "specialization": roles.kind,
        "consumers": roles.consumers,
        "producer_registers": roles.registers.producer,
        "consumer_registers": roles.registers.consumer,
        "worker_registers": roles.registers.worker,
        "schedule_kind": spec.schedule.kind,
        "order": spec.schedule.order,
        "minor": spec.schedule.minor,
        "width": spec.schedule.width,
        "occupancy": spec.occupancy,
    }
    return {name: value for name, value in stated.items() if value is not None}


def shape_of(spec: Spec) -> Shape:
    """Return the problem for which an open spec is planned."""
    return spec.bench.shapes[0] if spec.bench else DEFAULT_SHAPE
