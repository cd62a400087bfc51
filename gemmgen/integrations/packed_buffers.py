"""Buffers of packed weights in a layer: torch moves them, and neither a cast nor a load changes a type."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Final, Self, cast

from torch import Tensor, nn

from gemmgen.integrations.packed_weight import PackedWeight

NAMES: Final = ("packed_weight", "packed_scale", "tensor_scale")
"""The names of the buffers of a packed weight; a layer of several puts something before them."""


class PackedBuffers(nn.Module):
    """A part of a layer: its packed weights."""

    _format_of: dict[str, str]
    """The format of the weight of each buffer, by the buffer's name."""

    def _hold(self, packed: PackedWeight, scale_format: str, prefix: str = "") -> None:
        """Register a packed weight of a format as buffers."""
        names = [f"{prefix}{name}" for name in NAMES]
        for name, tensor in zip(names, packed, strict=True):
            self.register_buffer(name, tensor)
        self._format_of = getattr(self, "_format_of", {}) | dict.fromkeys(names, scale_format)

    def _held(self, prefix: str = "") -> PackedWeight:
        """Return a packed weight."""
        return PackedWeight(*[getattr(self, f"{prefix}{name}") for name in NAMES])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Let torch move packed weights without a cast, and move or cast other tensors."""
        kept = [tensor for name in self._format_of if (tensor := self._buffers[name]) is not None]

        def apply(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            is_cast = made.dtype != tensor.dtype and any(tensor is each for each in kept)
            return tensor.to(made.device) if is_cast else made

        return cast(Any, super())._apply(apply, recurse)

    def _load_from_state_dict(
        self,
        state_dict: MutableMapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load packed weights of the same types; another type is an error, as their numbers are bits."""
        errors: list[str] = []
        for name, scale_format in self._format_of.items():
            tensor = self._buffers[name]
            found = state_dict.get(f"{prefix}{name}")
            if tensor is not None and isinstance(found, Tensor) and found.dtype != tensor.dtype:
                wanted = f"{tensor.dtype}, as weights of {scale_format} are packed"
                errors.append(f"{prefix}{name} must be {wanted}, found {found.dtype}")
        error_msgs.extend(errors)
        if not errors:
            cast(Any, super())._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
