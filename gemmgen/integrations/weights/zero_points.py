"""Zero points of weights of eight bits, which no kernel subtracts."""

from __future__ import annotations

from torch import Tensor


def require_zero_points(name: str, zeros: Tensor, middle: int) -> None:
    """Raise ValueError unless all zero points of int8 are `middle`, as a symmetric layer has them.

    It waits for a GPU, once for each layer.
    """
    if not bool((zeros == middle).all()):
        low, high = (int(value) for value in zeros.aminmax())
        raise ValueError(
            f"{name} has numbers from {low} to {high} (asymmetric), and a symmetric layer has {middle} "
            "everywhere: no kernel subtracts zero points from int8"
        )
