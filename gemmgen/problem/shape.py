"""Extents of a matmul."""

from __future__ import annotations

Shape = tuple[int, int, int]
"""[M, N, K] of D[M, N] = A[M, K] @ B[K, N]."""


def shape_text(shape: Shape) -> str:
    """Return the shape as users write it: ``8192x8192x512``."""
    return "x".join(str(extent) for extent in shape)
