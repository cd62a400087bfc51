"""The facts of each release of Triton, as data: plans, templates and messages read them here.

A row describes one minor release and all its patches. There is one row, because kernels were lowered and
compared with their plans under Triton 3.9 alone: nothing was verified with any other release. Comments with
the tag [gluon] tell measurements of kernels that were lowered with it.

Sources, cited by their tag:

* [gluon] This release, measured by lowering kernels on both sides of the limit (``tests/test_lower.py``).
* [pip] The requirements that torch's wheels for CUDA state (``tests/test_install.py`` asks the index).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TritonRelease:
    """The facts of one minor release of Triton."""

    number: tuple[int, int]
    """(3, 9) for 3.9."""
    torch: str
    """The one minor release of torch whose builds for CUDA require it."""
    verified: tuple[int, ...]
    """The compute capabilities, major * 10 + minor, that kernels were lowered for and compared with plans."""

    barrier_alignment_bytes: int
    tile_alignment_bytes: int
    """For a tile that TMA writes without a swizzle."""
    swizzle_rows: int
    """A swizzled tile is aligned to the rows after which its pattern repeats."""

    capture_alignment_bytes: int
    """For the values that a kernel passes to its worker partitions, through shared memory."""
    pointer_capture_bytes: int
    """For a tensor descriptor, an address, or the base of a memory descriptor."""
    offset_capture_bytes: int
    """Per dimension of a memory descriptor, beside its base."""
    scalar_capture_bytes: int
    """For an i32."""
    stride_capture_bytes: int
    """For a stride of a descriptor, an i64."""

    worker_state_bytes: int
    """Per worker warp: which partition it runs."""
    worker_state_alignment_bytes: int
    counter_scratch_bytes: int
    """In which a partition's threads get what one of them has counted."""
    counter_scratch_alignment_bytes: int
    cluster_barrier_bytes: int
    """Two mbarriers and a phase, with which a partition's CTAs meet."""

    wgmma_n_max_int8: int
    """The widest instruction of int8; the next one that PTX has aborts the compiler."""
    tmem_excess_columns: int
    """The step in which its figure for tensor memory grows above the limit."""

    @property
    def name(self) -> str:
        """The release as a sentence names it: ``3.9``."""
        return "{}.{}".format(*self.number)

    @property
    def requirement(self) -> str:
        """The requirement that pip reads, ``triton~=3.9.0``: any patch of the release."""
        return f"triton~={self.name}.0"

    def has(self, version: str) -> bool:
        """Return True if a version is a patch of this release, as 3.9.1 and 3.9.0+git are of 3.9."""
        return f"{version}.".startswith(f"{self.name}.")


TRITON = TritonRelease(
    number=(3, 9),
    torch="2.15",  # [pip] torch 2.14 requires Triton 3.8
    verified=(90, 100),  # [gluon]; only kernels for 90 have run on a GPU
    barrier_alignment_bytes=16,  # [gluon], as are all that follow
    tile_alignment_bytes=128,
    swizzle_rows=8,
    capture_alignment_bytes=8,
    pointer_capture_bytes=8,
    offset_capture_bytes=4,
    scalar_capture_bytes=4,
    stride_capture_bytes=8,
    worker_state_bytes=1,
    worker_state_alignment_bytes=4,
    counter_scratch_bytes=4,
    counter_scratch_alignment_bytes=128,
    cluster_barrier_bytes=32,
    wgmma_n_max_int8=128,
    tmem_excess_columns=64,
)
"""The release that plans are made for."""
