"""The table of a library: the tensors and times of its kernels, and the choice among them by sizes.

gemmgen writes this file beside the modules of a library, and into packs of libraries. `Table` reads
table.json, which has everything that differs between libraries. The kernel for sizes is the one that was the
fastest there; where nothing was measured, it is the one with the shortest expected time, by forecast.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING or not __package__:  # at the top level of gemmgen, which has the files that a library copies
    from gemmgen.plan.cards import Product, card_of
    from gemmgen.plan.forecast import Forecast
    from gemmgen.plan.group_forecast import GroupForecast
    from gemmgen.plan.timing import Card, Stream, Tiles, Traffic
    from gemmgen.problem.groups import Groups
    from gemmgen_tuning import Tuner
else:
    from .cards import Product, card_of
    from .forecast import Forecast
    from .gemmgen_tuning import Tuner
    from .group_forecast import GroupForecast
    from .groups import Groups
    from .timing import Card, Stream, Tiles, Traffic

FORMAT = 5  # of table.json
Sizes = tuple[int, int, int]  # M, N and K


class TableError(ImportError):
    """A table.json that is missing, is cut, or has another format: its package cannot be imported."""


class Argument(NamedTuple):
    """One tensor of a call, as all kernels of the library take it."""

    dtype: torch.dtype
    axes: tuple[str, ...]
    """Words of AXES in gemmgen_launch.py, as in the ARGUMENTS of a module."""
    is_transposed: bool
    """The caller passes the transposed view of the matrix that is in memory."""


class Choice(NamedTuple):
    """A kernel, and in words why."""

    kernel: str
    why: str


class Table:
    """The kernels of a library, their tensors, and their times."""

    def __init__(self, path: Path) -> None:
        """Read table.json; raises TableError if it is missing or cut, or has another format."""
        self.package = path.parent.name
        # Whether measurements count on other GPUs too.
        self.is_accepted = os.environ.get("GEMMGEN_ACCEPT_TABLE", "0") == "1"
        self.forecasts: dict[tuple[bool, str | None], Forecast[str]] = {}
        self.warned = set[str | None]()
        self.tuner: Tuner | None = None  # which has times of kernels at sizes that the table does not have
        self.digest = ""  # of the kernels, what they compute, and their decisions
        remedy = "make the library again, or install it again"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] == FORMAT:
                self.read_measurements(found)
                self.read_call(found["call"])
                self.read_rule(found["rule"])
                decided = found["kernels"], found["call"], found["rule"]["rows"]
                self.digest = hashlib.sha256(json.dumps(decided).encode()).hexdigest()[:12]
                return
            fault = f"has format {found['format']!r}, and this library reads format {FORMAT}"
        except OSError as error:
            raise TableError(f"{path} cannot be read, {error.strerror}: {remedy}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise TableError(f"{path} is cut, or is no table of a library: {remedy}") from None
        raise TableError(f"{path} {fault}: {remedy}")

    def read_measurements(self, found: Mapping[str, Any]) -> None:
        """Take the kernels, and their measured times."""
        self.kernels: tuple[str, ...] = tuple(found["kernels"])
        self.gpu: str | None = found["gpu"]  # that they were timed on
        # By kernel and sizes: its microseconds, and the baseline's.
        self.measured: dict[str, dict[Sizes, tuple[float, float]]] = {
            name: {(m, n, k): (own, baseline) for m, n, k, own, baseline in rows}
            for name, rows in found["measured"].items()
        }
        # By sizes: the kernels that were measured there, and their time as a share of the baseline's.
        self.tuned = dict[Sizes, dict[str, float]]()
        for name, rows in self.measured.items():
            for sizes, (own, baseline) in rows.items():
                self.tuned.setdefault(sizes, {})[name] = own / baseline

    def read_call(self, call: Mapping[str, Any]) -> None:
        """Take the facts that all kernels have in common: their tensors, and their computation."""
        self.arguments = {
            name: Argument(getattr(torch, each["dtype"]), tuple(each["axes"]), each["transposed"])
            for name, each in call["arguments"].items()
        }
        self.inputs = tuple(name for name in self.arguments if name != "out")
        self.epilogue: tuple[str, ...] = tuple(call["epilogue"])
        self.groups = Groups(**call["groups"]) if call["groups"] else None
        self.most_groups: int = call["most_groups"]
        self.expects_rows: bool = call["expects_rows"]  # of a group in the mean, from the caller
        self.max_extent: int = call["max_extent"]
        self.columns_of_b = {"N": 1, "2N": 2}[self.arguments["b"].axes[-1]]  # for each column of D
        self.n_multiple: int = call["n_multiple"]
        self.copies: bool = call["copies"]  # tensors that TMA cannot move
        self.scale_vector: int = call["scale_vector"]  # elements of K that share a scale; 0 without scales
        self.scale_columns: int = call["scale_columns"]  # columns of B that share one
        # Kernels that add up sums in any order, which torch's deterministic mode excludes.
        self.unordered = frozenset[str](call["unordered"])

    def read_rule(self, rule: Mapping[str, Any]) -> None:
        """Take the inputs of predictions: the rates of GPUs, and a row of numbers for each kernel."""
        self.card, self.traffic = Card(**rule["card"]), Traffic(**rule["traffic"])
        self.products = [
            Product(each["device"], each["memory_gb"], self.card._replace(**each["card"]))
            for each in rule["products"]
        ]
        rows = dict[str, Tiles | Stream]()
        for kind in (Tiles, Stream):
            of_kind = rule["rows"][kind.__name__]
            for name, numbers in of_kind["kernels"].items():
                rows[name] = kind(**dict(zip(of_kind["fields"], numbers, strict=True)))
        self.rows = {name: rows[name] for name in self.kernels}

    # --- the choice

    def choose(
        self,
        m: int,
        n: int,
        k: int,
        groups: int | None = None,
        expected_m: int | None = None,
        *,
        gpu: str | None = None,
    ) -> Choice:
        """Return the kernel for sizes on a GPU, as CUDA names it; by default the one that was measured.

        On another GPU no measurement counts, unless `accept_table` was called: the planner's rule chooses,
        and a warning says so once.

        A library of groups is for a number of groups, which is the default. For another number, the kernel is
        the one for groups of the same mean size. M is the rows of all groups, or the rows of each group if A
        has a dimension for groups; K is the K of all groups. Masked groups are expected to have from no row
        to M, or `expected_m` in the mean.

        Raises ValueError for sizes below 1, and TypeError for groups that the kernels do not have.
        """
        sizes = m, n, k = self.in_planned_groups((m, n, k), groups, expected_m)
        is_known = self.is_known(gpu)
        if self.tuned and not is_known:
            self.warn_of(gpu)
        if found := self.tuned_for(sizes, gpu):
            name = min(found, key=found.__getitem__)
            own, baseline = self.measured[name][sizes]
            why = f"tuned on {self.gpu} for {m} x {n} x {k}"
            why += f" in {self.groups.count} groups" if self.groups else ""
            return Choice(name, f"{why}: {own:.1f} us measured, {baseline:.1f} us of the baseline")
        if times := self.timed(sizes, gpu):
            name, *others = sorted(times, key=times.__getitem__)
            why = f"timed on {gpu} at first use, {times[name]:.1f} us"
            why += "".join(f"; {other} {times[other]:.1f}" for other in others)
            return Choice(name, why)
        forecast = self.forecast(gpu, is_measured=is_known)
        name = forecast.best(self.candidates(forecast, sizes), sizes)
        why = f"not tuned: by the planner's rule, {forecast.predicted(name, sizes) * 1e6:.1f} us predicted"
        if gpu not in (None, self.gpu):
            why += f" on {gpu} of {forecast.card.sm_count} SMs"
        if near := forecast.nearest(name, sizes):
            corrected = forecast.expected(name, sizes) * 1e6
            why += f", {corrected:.1f} as corrected by what was measured on {self.gpu}"
            why += f", the nearest measured shape is {' x '.join(map(str, near))}"
        return Choice(name, why)

    def explain(
        self,
        m: int,
        n: int,
        k: int,
        groups: int | None = None,
        expected_m: int | None = None,
        *,
        gpu: str | None = None,
    ) -> str:
        """Return which kernel `choose` takes, and why: on a GPU by its name, or on the first of this machine.

        Without a GPU, it is the one that was measured.
        """
        if gpu is None and torch.cuda.is_available():
            gpu = torch.cuda.get_device_name(0)
        found = self.choose(m, n, k, groups, expected_m, gpu=gpu)
        return f"{found.kernel}: {found.why}"

    def is_known(self, gpu: str | None) -> bool:
        """Return True if there are measurements that count on a GPU."""
        return bool(self.tuned) and (gpu in (None, self.gpu) or self.is_accepted)

    def tuned_for(self, sizes: Sizes, gpu: str | None) -> Mapping[str, float]:
        """Return the allowed kernels that the table has times of for sizes, as shares of the baseline's."""
        found = self.tuned.get(sizes, {}) if self.is_known(gpu) else {}
        return {name: share for name, share in found.items() if self.is_allowed(name)}

    def timed(self, sizes: Sizes, gpu: str | None) -> Mapping[str, float]:
        """Return the microseconds of the allowed kernels that were timed for sizes on a GPU, if any were."""
        found = self.tuner.of(gpu, sizes) if self.tuner and gpu else None
        return {name: each for name, each in (found or {}).items() if self.is_allowed(name)}

    def untimed(self, sizes: Sizes, gpu: str) -> list[str]:
        """Return the kernels that are to be timed for sizes on a GPU; none if the fastest is known."""
        if self.tuner is None or self.tuned_for(sizes, gpu) or self.timed(sizes, gpu):
            return []
        forecast = self.forecast(gpu, is_measured=self.is_known(gpu))
        first = sorted(self.candidates(forecast, sizes), key=lambda name: forecast.expected(name, sizes))
        return first[: self.tuner.top]

    def in_planned_groups(self, sizes: Sizes, groups: int | None, expected_m: int | None) -> Sizes:
        """Return the sizes that a problem has in the number of groups that the library is for."""
        check_sizes(*sizes)
        if expected_m is not None and not self.expects_rows:
            raise TypeError("only a library of masked groups takes expected_m")
        count = self.count_groups(groups)
        return self.groups.resized(sizes, count, expected_m) if self.groups else sizes

    def count_groups(self, groups: int | None) -> int:
        """Return a number of groups, by default the one that the library is for; 0 without groups."""
        if self.groups is None:
            if groups is not None:
                raise TypeError(f"this library has no groups, found {groups}")
            return 0
        return self.groups.count if groups is None else groups

    def is_allowed(self, name: str) -> bool:
        """Return True if torch's deterministic mode, if it is on, allows a kernel."""
        return name not in self.unordered or not torch.are_deterministic_algorithms_enabled()

    def candidates(self, forecast: Forecast[str], sizes: Sizes) -> list[str]:
        """Return the allowed kernels that the planner considers, else all allowed ones, else all it does."""
        considered = forecast.candidates(sizes)
        allowed = [*filter(self.is_allowed, considered)] or [*filter(self.is_allowed, self.kernels)]
        return allowed or considered

    def warn_of(self, gpu: str | None) -> None:
        """Say once for a GPU that no measurement counts there."""
        if gpu in self.warned:
            return
        self.warned.add(gpu)
        message = (
            f"{self.package}: the table of kernels was made on {self.gpu}, this is {gpu}: the planner's rule"
            " chooses; accept_table() or GEMMGEN_ACCEPT_TABLE=1 takes the table all the same"
        )
        warnings.warn(message, stacklevel=4)

    # --- expected times

    def forecast(self, gpu: str | None = None, *, is_measured: bool) -> Forecast[str]:
        """Return the times that are expected on a GPU, corrected by measured ones if `is_measured`."""
        key = is_measured, gpu
        if key not in self.forecasts:
            own = self.own_forecast(is_measured=is_measured)
            is_own = gpu in (None, self.gpu)
            card = self.card if is_own else card_of(gpu, self.card, self.products, count_sms(gpu))
            self.forecasts[key] = own if is_own else own.on(card)
        return self.forecasts[key]

    def own_forecast(self, *, is_measured: bool) -> Forecast[str]:
        """Return the times that are expected on the GPU that the kernels are planned for."""
        measured = (
            (name, sizes, microseconds / 1e6)
            for name, rows in self.measured.items()
            for sizes, (microseconds, _) in rows.items()
            if is_measured
        )
        if self.groups:
            return GroupForecast(self.rows, self.card, self.traffic, measured, division=self.groups)
        return Forecast(self.rows, self.card, self.traffic, measured)


def check_sizes(m: int, n: int, k: int) -> None:
    """Raise ValueError for sizes below 1."""
    if min(m, n, k) < 1:
        raise ValueError(f"m, n and k must be 1 or more, found {m}, {n} and {k}")


def count_sms(gpu: str | None) -> int | None:
    """Return the SMs of the first GPU of this name on this machine; None if there is none."""
    cuda: Any = torch.cuda  # whose properties have no types
    found = map(cuda.get_device_properties, range(cuda.device_count() if cuda.is_available() else 0))
    return next((each.multi_processor_count for each in found if each.name == gpu), None)
