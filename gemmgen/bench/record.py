"""The record of one kernel: raw samples, the figures derived from them, and the files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeVar, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import GPUS, Gpu
from gemmgen.hardware.gpus import gpu_of
from gemmgen.json_files import BadFieldError, decode_json, encoded, read_json, refusal
from gemmgen.kinds import (
    Count,
    Extents,
    GpuName,
    Multiple,
    OneLine,
    Rate,
    Reading,
    Seconds,
    Sha256,
    Share,
    Version,
)
from gemmgen.numerics.encoding import DType
from gemmgen.problem import shape_text
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import Observation, Spread, ratios_of_repetitions

T = TypeVar("T")


@dataclass(frozen=True)
class Ceilings:
    """Sustained rates of one GPU for operands of one kind."""

    flops_per_second: Rate
    bytes_per_second: Rate
    source: OneLine

    def seconds(self, operations: int, moved_bytes: int) -> float:
        """Return the larger of the times for the arithmetic and for the bytes."""
        return max(operations / self.flops_per_second, moved_bytes / self.bytes_per_second)


H200: Final = Ceilings(
    flops_per_second=873e12,
    bytes_per_second=4.3e12,
    source="measured on an H200: wgmma m64n256k16 from resident shared memory on random bf16 operands; "
    "device-to-device copy, bytes read plus bytes written",
)
"""Measured ceilings of an H200 for 16-bit floats."""
H200_FP8: Final = Ceilings(
    flops_per_second=1693e12,
    bytes_per_second=4.3e12,
    source="measured on an H200: wgmma m64n256k32 from resident shared memory on random e4m3 operands; "
    "device-to-device copy, bytes read plus bytes written",
)
MEASURED: Final[Mapping[str, Mapping[DType, Ceilings]]] = MappingProxyType(
    {"h200": {"bf16": H200, "fp16": H200, "e4m3": H200_FP8, "e5m2": H200_FP8}}
)
"""Measured ceilings, by the GPU's name in a spec and the type of the operands."""


def ceilings_of(gpu: str, operand: DType = "bf16", smem_bits: int = 16) -> Ceilings | None:
    """Return the ceilings of the GPU of this product name: measured, or of its datasheet, or None.

    The datasheet is used if no GPU of the generation was available, by the bits of an element in shared
    memory: 4 for e2m1, and 8 if it is padded. None for tf32 and int8 on an H200, for an H100, and for a GPU
    that no spec can name.
    """
    known = gpu_of(gpu)
    if known is None:
        return None
    measured = {GPUS[name].architecture.generation for name in MEASURED}
    if known.architecture.generation not in measured:
        return _datasheet(known, smem_bits)
    return MEASURED.get(known.target, {}).get(operand)


def measured_of(gpu: str, operand: DType) -> Ceilings | None:
    """Return the ceilings measured on the GPU of this product name; None if there are none."""
    known = gpu_of(gpu)
    return MEASURED.get(known.target, {}).get(operand) if known else None


def peaks_of(gpu: str, smem_bits: int) -> Ceilings | None:
    """Return the datasheet's peaks of the GPU of this product name; None if no spec can name it."""
    known = gpu_of(gpu)
    return _datasheet(known, smem_bits) if known else None


def _datasheet(gpu: Gpu, bits: int) -> Ceilings:
    """Return a product's peaks, which no kernel sustains."""
    return Ceilings(
        flops_per_second=gpu.dense_flops_per_second(bits),
        bytes_per_second=gpu.dram_bytes_per_second,
        source=f"datasheet of the {gpu.name}, not measured: dense MMA of {bits}-bit operands; "
        "memory bandwidth",
    )


SCHEMA: Final = 1
DATE_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"

Samples = tuple[tuple[Seconds, ...], ...]
"""Seconds per call of each sample, by repetition."""


@dataclass(frozen=True)
class Protocol:
    """Number and duration of samples, and memory of the inputs.

    The figures are *sustained* ones: measured after the GPU has worked for ``warm_up_seconds`` without a
    pause, when its clock has settled at the power limit.
    """

    repetitions: Count = 3
    pairs: Count = 15
    """Pairs of samples in each repetition, the baseline's first: a loss of the second arm counts against
    gemmgen.
    """
    sample_seconds: Seconds = 10e-3
    """Least device time of a sample, a batch of calls; thousands of times the resolution of an event."""
    warm_up_seconds: Seconds = 1.5
    graph_below_seconds: Seconds = 100e-6
    """Kernels shorter than this are timed through a CUDA graph, since a host may not keep up with them."""
    graph_seconds: Seconds = 1e-3
    """Least device time of such a graph, so that its launch costs nothing against its run."""
    l2_multiple: Multiple = 2.5
    """Size of all input sets together, in sizes of the L2 cache."""
    max_input_sets: Count = 1024
    """Greatest number of sets: those of small problems stay within the cache, because more sets cost more."""
    host_rounds: Count = 5
    host_calls: Count = 200
    """Number of eager calls in each round; the host cost is the smallest of the rounds' medians."""
    seed: int = 0


@dataclass(frozen=True)
class Subject:
    """The timed kernel: its spec and its module, by their hashes."""

    spec_path: OneLine
    """Path relative to the directory in which the benchmark was started; only the name for a spec from
    elsewhere.
    """
    spec_sha256: Sha256
    module_sha256: Sha256

    @classmethod
    def of(cls, spec_path: Path, module_path: Path) -> Subject:
        """Return the subject of two files; raises OSError if one cannot be read."""
        return cls(path_from_here(spec_path), sha256_of(spec_path), sha256_of(module_path))

    @property
    def name(self) -> str:
        """The spec's stem."""
        return Path(self.spec_path).stem


@dataclass(frozen=True)
class Environment:
    """Versions and the GPU, without names and paths of a machine."""

    gemmgen: OneLine
    torch: OneLine
    triton: OneLine
    cuda: OneLine
    cublas: OneLine
    driver: OneLine
    gpu: GpuName
    sm_count: Count
    l2_bytes: Count


@dataclass(frozen=True)
class GpuState:
    """State of a working GPU by ``nvidia-smi``; None for each value that it does not report."""

    sm_clock_mhz: Reading | None
    power_w: Reading | None
    temperature_c: Reading | None


@dataclass(frozen=True)
class Timing:
    """Samples of one shape in seconds per call, and the cost of an eager call on the host."""

    method: Literal["events", "graph"]
    """CUDA events around a batch of eager calls, or around replays of a CUDA graph of calls."""
    calls_per_sample: Count
    ours_seconds: Samples
    baseline_seconds: Samples
    ours_host_seconds: Seconds
    baseline_host_seconds: Seconds
    state_before: GpuState | None
    """State at the end of the warm-up; None if ``nvidia-smi`` does not respond."""
    state_after: GpuState | None

    def __post_init__(self) -> None:
        lengths = [
            [len(repetition) for repetition in samples]
            for samples in (self.ours_seconds, self.baseline_seconds)
        ]
        if lengths[0] != lengths[1] or not lengths[0] or 0 in lengths[0]:
            raise ValueError("both arms need the same number of samples, at least one in each repetition")


@dataclass(frozen=True)
class Measurement:
    """All samples of one shape in the format of a record, and the kernel's error on the timed tensors.

    The class is separate from ``Observation``, which has medians: ``observed`` makes the observation.
    """

    shape: Extents
    input_sets: Count
    relative_error: Share
    baseline_relative_error: Share
    timing: Timing

    def observed(self, kernel: str = "", dtypes: Dtypes | None = None) -> Observation[str]:
        """Return the observation of a kernel of this name: medians of all samples, and the ratio's spread.

        `dtypes` counts the operations; without it, the product is one matmul [M, N, K].
        """
        ours, baseline = self.timing.ours_seconds, self.timing.baseline_seconds
        seconds, baseline_seconds = (Spread.of(samples).median for samples in (ours, baseline))
        spread = ratios_of_repetitions(baseline, ours)
        operations = dtypes.flops(self.shape) if dtypes else None
        return Observation(self.shape, kernel, seconds, baseline_seconds, spread, operations)


@dataclass(frozen=True)
class Record:
    """One run of the benchmark: one kernel against the baseline on some shapes."""

    schema: Annotated[int, Version(SCHEMA)]
    date: OneLine
    """UTC time at which the run ended."""
    subject: Subject
    environment: Environment
    dtypes: Dtypes
    baseline: OneLine
    """Exact text of the baseline."""
    protocol: Protocol
    ceilings: Ceilings | None
    """Ceilings of the GPU for these operands; None if there are none, and then there is no roofline."""
    measurements: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        datetime.strptime(self.date, DATE_FORMAT)  # raises ValueError

    def roofline_fraction(self, measurement: Measurement) -> float | None:
        """Return the least time that the ceilings allow over the measured time; None without ceilings."""
        least = self._least_seconds(measurement)
        return None if least is None else least / measurement.observed().seconds

    @property
    def errors(self) -> tuple[str, ...]:
        """Results that cannot be true: faster than the roofline."""
        return tuple(self._impossible())

    def _impossible(self) -> Iterator[str]:
        for measurement in self.measurements:
            least = self._least_seconds(measurement)
            arms = {
                "gemmgen": measurement.observed().seconds,
                "the baseline": measurement.observed().baseline_seconds,
            }
            for arm, seconds in arms.items():
                if least is not None and seconds < least:
                    place = f"{self.subject.name} {shape_text(measurement.shape)}"
                    yield f"{place}: {arm} at {least / seconds:.2f} of the roofline: do not believe it"

    def _least_seconds(self, measurement: Measurement) -> float | None:
        if self.ceilings is None:
            return None
        shape, dtypes = measurement.shape, self.dtypes
        return self.ceilings.seconds(dtypes.flops(shape), dtypes.moved_bytes(shape))


def utc_now() -> str:
    """Return the time as a record states it."""
    return datetime.now(UTC).strftime(DATE_FORMAT)


def path_from_here(path: Path) -> str:
    """Return a path relative to the current directory; of a file elsewhere, its name alone."""
    whole, here = path.resolve(), Path.cwd()
    return whole.relative_to(here).as_posix() if whole.is_relative_to(here) else whole.name


def sha256_of(path: Path) -> str:
    """Return the hash of a file's bytes; raises OSError when it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- records as JSON files, readable for people, and validated when they are read


def to_json(record: Record) -> str:
    """Return the record as a JSON document, the samples of a repetition on one line.

    A member whose value and default are None is omitted: older records do not have it.
    """
    return _layout(encoded(record), "") + "\n"


def from_json(text: str, path: str) -> Record:
    """Return the record in a document that ``to_json`` wrote; ``path`` is for messages.

    Raises GemmgenError (``bad-record``) with the first field that is missing, unknown or of another kind.
    """
    return _decoded(Record, text, path)


def encoded_line(value: object) -> str:
    """Return a dataclass as JSON on one line, with what ``to_json`` leaves out left out."""
    return json.dumps(encoded(value), allow_nan=False)


def from_line(kind: type[T], text: bytes, path: str, line: int) -> T:
    """Return the instance of a dataclass in a line that ``encoded_line`` wrote; the path is for messages.

    Raises GemmgenError (``bad-record``) with the first field that is missing, unknown or of another kind.
    """
    return _decoded(kind, text, path, line)


def _decoded(kind: type[T], text: str | bytes, path: str, line: int | None = None) -> T:
    try:
        return decode_json(kind, text)
    except BadFieldError as error:
        raise GemmgenError([refusal(error, path, "bad-record", line)]) from None


def read_record(path: Path) -> Record:
    """Return the record in a file.

    Raises:
        GemmgenError: The file cannot be read or holds no record.
    """
    return read_json(Record, path, "bad-record")


def write_record(record: Record, path: Path) -> None:
    """Write a record to a file.

    Raises:
        GemmgenError: The file cannot be written.
    """
    try:
        path.write_text(to_json(record), encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"cannot write the record: {error.strerror or error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "cannot-write", message)]) from error


def _layout(value: object, indent: str) -> str:
    """Return JSON with a line for each member and each element, but one line for a list of plain values."""
    deeper = indent + "  "
    if isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        lines = [f"{deeper}{json.dumps(name)}: {_layout(member, deeper)}" for name, member in members]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, tuple):
        elements = cast("tuple[object, ...]", value)
        if any(isinstance(element, dict | tuple) for element in elements):
            lines = [deeper + _layout(element, deeper) for element in elements]
            return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
