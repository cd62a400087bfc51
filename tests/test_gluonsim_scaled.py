"""Block-scaled MMAs read each format of operands as Triton packs it, or are refused with their line."""

from __future__ import annotations

import importlib
import linecache
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

from gemmgen.errors import GemmgenError
from gluonsim import Result, simulate

pytestmark = pytest.mark.simulator

gl = cast(Any, gl_)
kernels: Any = importlib.import_module("kernels.scaled")

HALVES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = torch.cat([HALVES, -HALVES])
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def operand(format_: str, rows: int, depth: int, packed: int) -> tuple[Tensor, Tensor]:
    """Return values [rows, K] and their bytes; neighbours along dimension `packed` share one."""
    if format_ != "e2m1":
        values = torch.randint(-4, 5, (rows, depth)).float()
        return values, values.to(DTYPES.get(format_, torch.float8_e4m3fn))
    codes = torch.randint(0, 16, (rows, depth), dtype=torch.uint8)
    pairs = cast(Tensor, cast(Any, codes).unflatten(packed, (-1, 2)))
    low, high = pairs.unbind(packed + 1)
    return E2M1[codes.long()], low | high << 4


@dataclass
class Tile:
    """One launch of the tile kernel on small random numbers."""

    formats: tuple[str, str]
    padded: tuple[bool, bool] = (False, False)
    packed: tuple[int, int] = (1, 1)
    """The dimension, of [rows, K], along which neighbours are contiguous and share a byte."""
    block: int = 32
    scale_type: torch.dtype = torch.uint8
    by_registers: bool = False
    ctas: int = 1
    scale_bases: tuple[list[list[int]], list[list[int]]] = ([], [])
    columns: int = 256
    depth: int = 256
    found: Tensor = field(default_factory=lambda: torch.zeros(0))

    def run(self) -> Result:
        """Launch the kernel."""
        cast(Any, torch).manual_seed(0)
        rows, columns, depth = 128 * self.ctas, self.columns, self.depth
        (a, a_bytes), (b, b_bytes) = (
            operand(format_, extent, depth, packed)
            for format_, extent, packed in zip(self.formats, (rows, columns), self.packed, strict=True)
        )
        b_transposed = self.packed[1] == 1
        b_bytes = b_bytes if b_transposed else b_bytes.T.contiguous()
        scales = [torch.randint(126, 130, (extent, depth // self.block)) for extent in (rows, columns)]
        powers = [2.0 ** (scale - 127) for scale in scales]
        self.wanted = self._scaled(a, powers[0]) @ self._scaled(b, powers[1]).T
        stored = [scale.to(torch.uint8) for scale in scales]
        if self.scale_type != torch.uint8:
            stored = [power.to(self.scale_type) for power in powers]
        self.found = torch.zeros(rows, columns)
        bases = [[1, 0]] if self.ctas > 1 else []
        return simulate(kernels.tile_kernel, "b200", schedules=("lazy",))[1](
            *(a_bytes, b_bytes, *stored, self.found),
            *(list(a_bytes.shape), list(b_bytes.shape), [rows, columns], depth // self.block),
            self.formats,
            gl.NVMMASharedLayout(128, 8, 2, self.packed[0] == 0, self.padded[0], bases),
            gl.NVMMASharedLayout(128, 8, 2, False, self.padded[1], bases),
            b_transposed,
            self.scale_bases,
            self.by_registers,
            num_ctas=self.ctas,
        )

    def _scaled(self, values: Tensor, powers: Tensor) -> Tensor:
        return values * powers.repeat_interleave(self.block, 1)

    def refused(self, code: str = "tcgen05_mma_scaled") -> str:
        """Return why the launch is refused: at a line with some code."""
        with pytest.raises(GemmgenError) as error:
            self.run()
        diagnostic = error.value.diagnostics[0]
        assert code in linecache.getline(kernels.__file__, diagnostic.line or 0)
        return diagnostic.message


BOTH = ("e2m1", "e2m1")


@pytest.mark.parametrize(
    "tile",
    [
        Tile(("e4m3", "e5m2")),
        Tile(BOTH),
        Tile(BOTH, by_registers=True),
        Tile(BOTH, block=16, scale_type=torch.float8_e4m3fn),
        Tile(("e2m1", "e4m3"), (True, False)),
        Tile(("e5m2", "e2m1"), (False, True)),
        Tile(("e4m3", "e4m3"), packed=(0, 0)),
        Tile(("e2m1", "e4m3"), (True, False), (0, 1)),
        Tile(("e4m3", "e2m1"), (False, True), (1, 0)),
        Tile(BOTH, (True, True), (0, 0)),
        Tile(BOTH, (True, True), (0, 1)),
        Tile(BOTH, (True, True), (1, 0)),
        Tile(("e4m3", "e4m3"), ctas=2, scale_bases=([[1, 0]], [[0, 0]])),
    ],
)
def test_operands_are_read_as_they_are_packed(tile: Tile) -> None:
    assert not tile.run().findings
    assert tile.found.equal(tile.wanted)


@pytest.mark.parametrize("format_", ["e2m3", "e3m2"])
def test_formats_of_six_bits_are_refused_by_name_and_line(format_: str) -> None:
    """Triton 3.9 has no operands of them in Gluon."""
    assert f"Unsupported lhs_format: {format_}" in Tile((format_, "e4m3")).refused()
    assert f"Unsupported rhs_format: {format_}" in Tile(("e4m3", format_)).refused()


@pytest.mark.parametrize(
    "tile",
    [
        Tile(BOTH, (True, True)),
        Tile(BOTH, (True, False), (0, 1)),
        Tile(("e2m1", "e4m3")),
    ],
)
def test_padding_that_the_hardware_does_not_read_is_refused_with_its_line(tile: Tile) -> None:
    assert "fp4_padded: e2m1 is padded if it meets 8 bits" in tile.refused()


def test_scales_of_nvfp4_are_for_operands_that_are_contiguous_along_k() -> None:
    tile = Tile(BOTH, (True, True), (0, 0), block=16, scale_type=torch.float8_e4m3fn)
    assert "mxf4nvf4 does not support transposed operands" in tile.refused()


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        (([[1, 0]], [[0, 1]]), "scales of B of the shape [64, 8], and holds [64, 4]"),
        (([[1, 0]], [[1, 0]]), "scales of B of the shape [64, 8], and holds [32, 8]"),
        (([[0, 1]], [[0, 0]]), "scales of A of the shape [128, 8], and holds [256, 4]"),
    ],
)
def test_scales_that_ctas_divide_are_refused_with_their_line(
    bases: tuple[list[list[int]], list[list[int]]], message: str
) -> None:
    tile = Tile(("e4m3", "e4m3"), ctas=2, scale_bases=bases, columns=64)
    assert message in tile.refused()


def test_padded_tensor_memory_is_refused_with_its_line() -> None:
    message = Tile(("e2m1", "e4m3"), (True, False), by_registers=True).refused("allocate_tensor_memory(a")
    assert message.startswith("tensor memory with fp4_padded is not known")
