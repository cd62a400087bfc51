"""The order of K in checkpoints whose quantization may have sorted it."""

from __future__ import annotations

import torch
from torch import Tensor


def require_order_of_k(name: str, g_idx: Tensor | None, vector: int) -> None:
    """Raise ValueError if the block of each K is not the one of its place.

    A quantization with ``desc_act`` (act-order) sorts K by its importance: neighbours along K then have
    scales of different blocks. It waits for a GPU, once for each layer.
    """
    if g_idx is None or not g_idx.numel():
        return
    expected = torch.arange(g_idx.shape[-1], dtype=g_idx.dtype, device=g_idx.device) // vector
    if not torch.equal(g_idx, expected.expand_as(g_idx)):
        raise ValueError(
            f"{name} assigns scales to K in another order than K's own (desc_act, act-order): a kernel reads "
            f"one scale for {vector} neighbours. Quantize the model without desc_act"
        )
