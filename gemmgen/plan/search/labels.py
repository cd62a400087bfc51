"""The tile and the cluster of a kernel in words, for labels and tables."""

from __future__ import annotations

from gemmgen.plan.kernel import Kernel


def tile_and_cluster(kernel: Kernel) -> list[str]:
    """Return the tile of a kernel's CTAs, and their cluster where there is one, in words."""
    tile = f"{kernel.cta_tile_m} x {kernel.cta_tile_n} x {kernel.cta_tile_k}"
    tile += " staggered" * (kernel.tiles_together > 1)
    return [tile, *([f"cluster {kernel.cluster_m} x {kernel.cluster_n}"] if kernel.cluster_size > 1 else [])]


def narrow_tile(kernel: Kernel) -> str:
    """Return the tile of a kernel's CTAs for the cell of a table: M, N and K, and whether it is staggered."""
    staggered = " staggered" * (kernel.tiles_together > 1)
    return f"{kernel.cta_tile_m}x{kernel.cta_tile_n}x{kernel.cta_tile_k}{staggered}"


def narrow_cluster(kernel: Kernel) -> str:
    """Return the CTAs of a kernel's cluster for the cell of a table."""
    return f"{kernel.cluster_m}x{kernel.cluster_n}"
