"""Kernels for the experts of torchtitan's models, by the seam that its experts have for grouped products.

A model's configuration is converted before the model is built, as torchtitan's own converters for fp8 do it:
the experts keep their parameters, and another class computes their three grouped products.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

from torch import Tensor

from gemmgen.errors import install_advice
from gemmgen.integrations.grouped import GroupedMM

OLDEST: Final = "0.3"
"""The oldest release of torchtitan that this file was run with."""
try:
    _moe: Any = import_module("torchtitan.models.common.moe")
    _model: Any = import_module("torchtitan.protocols.model")
    GroupedExperts: Any = _moe.GroupedExperts
    GroupedExperts._grouped_mm  # noqa: B018 - the seam
    ModelConfigConverter: Any = _model.ModelConfigConverter
except (ImportError, AttributeError) as error:
    _message = f"torchtitan {OLDEST} or later is needed for its experts ({error})"
    raise ImportError(f"{_message}: {install_advice('torchtitan')}") from error


class GroupedExpertsConverter(ModelConfigConverter):
    """Let generated modules compute the grouped products of a model's experts, forward and backward.

    Torch computes each product that no module takes. The `reason` of a layer's ``grouped_mm`` says why.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfigConverter.Config):
        """The modules by their names, which torchtitan's files of configurations can hold."""

        kernels: list[str]
        """Modules of groups, in the order in which they are asked: with ``backward: true`` for training."""
        few_rows: dict[int, str] = field(default_factory=dict[int, str])
        """Further modules by the most rows of a group, in the mean of all groups."""

    def __init__(self, config: Config) -> None:
        """Import the modules; raises ImportError without one, and ValueError as ``GroupedMM``."""
        _require_names(config.kernels)
        self.config = config
        grouped_mm_of(config.kernels, config.few_rows)  # a wrong module is refused before a model is built

    def convert(self, model_config: Any) -> Any:
        """Return a configuration whose experts are computed by the modules; it is changed in place."""
        for _, config, parent, attribute in model_config.traverse(GroupedExperts.Config):
            kind = cast(Any, type(config))
            made = experts_class(kind._owner).Config  # the owner is the class that it builds
            values = {each.name: getattr(config, each.name) for each in fields(config)}
            own = {"kernels": self.config.kernels, "few_rows": self.config.few_rows}
            new = made(**{**values, **own})
            if parent is None:
                return new
            if isinstance(parent, list):
                parent[attribute] = new
            else:
                setattr(parent, attribute, new)
        return model_config


def _require_names(kernels: object) -> None:
    """Raise ValueError for anything but a list."""
    if not isinstance(kernels, list):
        raise ValueError(f"kernels must be a list of names of modules, found {kernels!r}")


def grouped_mm_of(kernels: list[str], few_rows: dict[int, str]) -> GroupedMM:
    """Return the function of modules, by their names."""
    few = {most: import_module(name) for most, name in few_rows.items()}
    return GroupedMM(*map(import_module, kernels), few_rows=few)


@cache
def experts_class(parent: Any) -> Any:
    """Return a subclass of a class of experts whose grouped products a ``GroupedMM`` computes.

    A class that is one is returned as it is: its configuration has the modules.
    """
    if "kernels" in {each.name for each in fields(parent.Config)}:
        return parent

    class KernelExperts(parent):
        @dataclass(kw_only=True, slots=True)
        class Config(parent.Config):
            kernels: list[str]
            few_rows: dict[int, str]

        def __init__(self, config: Config) -> None:
            parent.__init__(self, config)
            self.grouped_mm = grouped_mm_of(config.kernels, config.few_rows)

        def _grouped_mm(self, *, A: Tensor, B_t: Tensor, offs: Tensor) -> Tensor:  # noqa: N803 - torchtitan's
            return self.grouped_mm(A, B_t, offs=offs)

    KernelExperts.__name__ = KernelExperts.__qualname__ = f"Kernel{parent.__name__}"
    return KernelExperts
