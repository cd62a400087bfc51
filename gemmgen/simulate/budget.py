"""What a kernel takes of an SM: shared memory, tensor memory and registers."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.simulate.findings import Findings, Kind, Severity
from gemmgen.simulate.parse import Block, Operation
from gemmgen.simulate.types import MemDescType
from gemmgen.target import Architecture


def check_budget(module: Operation, function: Operation, machine: Architecture, findings: Findings) -> None:
    """Report more memory than a CTA can have, and register requests that cannot be met."""
    body = function.regions[0]
    smem_bytes: int = module.attributes["ttg.shared"]
    if smem_bytes > (limit := machine.smem_bytes_per_cta):
        text = f"the kernel needs {smem_bytes:,} bytes of shared memory, a CTA has {limit:,}"
        _blame_largest(body, "ttg.local_alloc", Kind.SMEM_CAPACITY, text, findings)
    columns: int = module.attributes.get("ttg.tensor_memory_size", 0)
    if columns > (limit := machine.tmem_columns):
        text = f"the kernel needs {columns} columns of tensor memory, an SM has {limit}"
        _blame_largest(body, "ttng.tmem_alloc", Kind.TMEM_CAPACITY, text, findings)
    for op in walk(body):
        if op.name == "ttg.warp_specialize":
            _check_registers(op, module, machine, findings)


def _blame_largest(body: Block, name: str, kind: Kind, text: str, findings: Findings) -> None:
    largest = max((op for op in walk(body) if op.name == name), key=_local_bytes)
    variable = largest.location.name or "<unnamed buffer>"
    findings.add(kind, variable, (largest.location,), "launch", 0, text)


def walk(block: Block) -> Iterator[Operation]:
    """Yield every operation, regions included, in order."""
    for op in block.operations:
        yield op
        for region in op.regions:
            yield from walk(region)


def _local_bytes(op: Operation) -> int:
    type_ = op.result_types[0]
    assert isinstance(type_, MemDescType)
    return type_.local_bytes


def _check_registers(op: Operation, module: Operation, machine: Architecture, findings: Findings) -> None:
    requested: tuple[int, ...] | None = op.attributes.get("requestedRegisters")
    if requested is None:
        return
    actual: tuple[int, ...] | None = op.attributes.get("actualRegisters")
    if actual is None:
        # Every thread keeps the registers of the launch then: slower perhaps, and right.
        text = f"the compiler drops the request for {', '.join(map(str, requested))} registers: too many"
        where = (op.location,)
        findings.add(
            Kind.REGISTER_BUDGET, "worker_num_regs", where, "launch", 0, text, severity=Severity.LINT
        )
        return
    # Partitions share groups of four warps, and setmaxnreg is a group's: count each group once.
    starts: tuple[int, ...] = op.attributes["warpGroupStartIds"]
    default_warps: int = module.attributes["ttg.num-warps"]
    group_warps = machine.warps_per_warpgroup
    groups = dict.fromkeys(range(default_warps // group_warps), actual[0])
    for start, warps, registers in zip(starts, op.attributes["partitionNumWarps"], actual[1:], strict=True):
        for group in range(start // group_warps, -(-(start + warps) // group_warps)):
            groups[group] = max(registers, groups.get(group, 0))
    total = sum(groups.values()) * group_warps * machine.threads_per_warp
    if total > machine.registers_per_sm:
        text = f"partitions hold {total:,} registers, an SM has {machine.registers_per_sm:,}"
        findings.add(Kind.REGISTER_BUDGET, "worker_num_regs", (op.location,), "launch", 0, text)
