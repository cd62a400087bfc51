"""Options of `tune`: budget, places, GPUs, and the machinery that touches a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmgen.bench.result_log import Rounds
from gemmgen.tune.worker import (
    PROTOCOL,
    MachineOn,
    Prepare,
    compile_in_children,
    cuda_machine,
)


@dataclass(frozen=True)
class TuningOptions:
    """Options of ``tune``: the budget of the search, and the places of trials and results."""

    store: str
    """Place of the trials, as ``Store`` accepts it; recorded trials are not measured again."""
    out: Path
    """Directory for the specs of the winners."""
    table: Path | None = None
    """File for the table of winners; None: no table is written."""
    budget: float = 60.0
    """GPU time of all trials of one spec and shape, in seconds."""
    candidates: int = 10
    """Number of kernels that the planner ranks first, with which the search begins."""
    devices: Sequence[int] | None = None
    """Indices of the GPUs to measure on; None: all that are visible."""
    gpu: str | None = None
    """Name of a GPU whose recorded trials decide; nothing is measured then."""
    minutes: float | None = None
    """Time for all specs and shapes, those first whose kernels the planner can least tell apart; a later run
    goes on with the others. None: all are tuned, in their order.
    """
    again: bool = False
    """True to discard the recorded trials and measure them again."""


@dataclass(frozen=True)
class TuningMachinery:
    """The parts that touch a GPU: how it is opened, how kernels are compiled, and the timing protocol."""

    machine_on: MachineOn = cuda_machine
    prepare: Prepare = compile_in_children
    protocol: Rounds = PROTOCOL


CUDA: Final = TuningMachinery()
"""Machinery for the CUDA GPUs of this machine."""
