"""The assembler's report of a kernel: registers, spills, and its notes that MMAs run one after the other."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from gemmgen import triton_api
from gluonsim.ir.ttgir import GenericTtgir, in_child

_REGISTERS = re.compile(r"Used (\d+) registers")
_BYTES = {name: re.compile(rf"(\d+) bytes {name}") for name in ("spill stores", "spill loads", "stack frame")}
_NOTE = re.compile(r"\((C75\d\d)\) ?([^\n]*)")


@dataclass(frozen=True)
class CompilerReport:
    """Figures and notes of ptxas for one kernel."""

    registers: int
    """Registers of a thread at the launch; partitions may request others."""
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    notes: Mapping[str, str]
    """Notes by number, ``C7514``: MMAs are serialized, or a request for registers is ignored."""

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "registers": self.registers,
            "spill_store_bytes": self.spill_store_bytes,
            "spill_load_bytes": self.spill_load_bytes,
            "stack_bytes": self.stack_bytes,
            "notes": dict(self.notes),
        }

    def __str__(self) -> str:
        spilled = (
            f"{self.spill_store_bytes:,} bytes of spill stores, {self.spill_load_bytes:,} of spill loads"
        )
        notes = "".join(f"; ({number}) {text}" for number, text in self.notes.items())
        return f"ptxas: {self.registers} registers, {spilled}, {self.stack_bytes:,} of stack{notes}"


def compiled(lowered: GenericTtgir) -> tuple[triton_api.MachineCode, CompilerReport]:
    """Compile a kernel to the end, in another process; return its machine code and the report of ptxas.

    Raises:
        GemmgenError: The compiler refuses the kernel (``lowering-failed``).
    """
    assert lowered.specialized is not None
    code, log = in_child(partial(_compiled, lowered.specialized))
    return code, report_of(log)


def _compiled(specialized: triton_api.Specialized) -> tuple[triton_api.MachineCode, str]:
    """Compile in the child, with a new cache: ptxas reports nothing of a kernel that is cached."""
    with TemporaryDirectory() as cache, redirect_stdout(io.StringIO()) as log:
        os.environ[triton_api.CACHE_VARIABLE] = cache
        os.environ.update(triton_api.COMPILER_ENVIRONMENT)
        return specialized.machine_code(), log.getvalue()


def report_of(log: str) -> CompilerReport:
    """Return the report that ptxas printed with ``-v``."""
    registers = [int(count) for count in _REGISTERS.findall(log)]
    spilled: dict[str, Any] = {name: sum(map(int, found.findall(log))) for name, found in _BYTES.items()}
    notes = {number: text.strip() for number, text in _NOTE.findall(log)}
    return CompilerReport(
        max(registers, default=0),
        spilled["spill stores"],
        spilled["spill loads"],
        spilled["stack frame"],
        notes,
    )
