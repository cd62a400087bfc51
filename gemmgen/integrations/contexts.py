"""Contexts in which other functions compute the calls of torch's own, for all threads of the process.

A stand-in takes the place of torch's function while at least one context is active. It looks like torch's
function, and the context that was entered last and is still active computes its calls. If no context is
active any more, a stand-in that someone kept is torch's function.

Torch's compilers keep the functions that they find when their modules are imported, and that is when a
process compiles for the first time. While a module of torch is imported, its function is in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ContextDecorator, contextmanager
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

LOCK: Final = RLock()
"""Held while contexts are entered and left, and while functions change places."""
FunctionT = TypeVar("FunctionT")


class Replacing(ContextDecorator, Generic[FunctionT]):
    """A context in which functions compute the calls of torch's; it may be entered several times."""

    def __init__(
        self, given: FunctionT, functions: Sequence[tuple[ReplacedFunction, Callable[..., Any]]]
    ) -> None:
        """Take the value that the context gives, and the function for each place."""
        self._given, self._functions = given, tuple(functions)

    def __enter__(self) -> FunctionT:
        """Let the functions compute the calls, and return the given value."""
        with LOCK:
            for place, function in self._functions:
                place.add(function)
        return self._given

    def __exit__(self, *_: object) -> None:
        """Take the functions back: torch's own are in their places if no other context is active."""
        with LOCK:
            for place, function in self._functions:
                place.remove(function)


class ReplacedFunction:
    """A function of torch that contexts replace, by the module that has it and its name there.

    Releases of torch may lack the function: then the place stays empty.
    """

    def __init__(self, module: ModuleType, name: str) -> None:
        self.module, self.name = module, name
        self._period: _Period | None = None

    def add(self, function: Callable[..., Any]) -> None:
        """Let a function compute the calls from now on."""
        if self._period is None:
            if not hasattr(self.module, self.name):
                return
            self._period = _Period.of(getattr(self.module, self.name))
            IMPORTS.places.append(self)
            IMPORTS.watch()
            self.put(is_own=IMPORTS.under_way > 0)
        self._period.active.append(function)

    def remove(self, function: Callable[..., Any]) -> None:
        """Undo an `add` of the same function, whichever contexts were entered since."""
        if self._period is None:
            return
        active = self._period.active
        for index in [index for index, each in enumerate(active) if each is function][-1:]:
            del active[index]
        if not active:
            self.put(is_own=True)
            IMPORTS.places.remove(self)
            self._period = None

    def put(self, *, is_own: bool) -> None:
        """Put torch's own function or the stand-in into the place, unless someone else's is there by now."""
        own, stand_in = cast(_Period, self._period)[:2]
        if getattr(self.module, self.name, None) in (own, stand_in):
            setattr(self.module, self.name, own if is_own else stand_in)


class _Period(NamedTuple):
    """The time from the first context's beginning to the last one's end."""

    own: Callable[..., Any]
    stand_in: Callable[..., Any]
    active: list[Callable[..., Any]]
    """The functions of active contexts, the latest last."""

    @classmethod
    def of(cls, own: Callable[..., Any]) -> _Period:
        """Return the period of torch's own function."""
        active: list[Callable[..., Any]] = []

        @wraps(own)
        def stand_in(*arguments: Any, **options: Any) -> Any:
            latest = active[-1:]  # a copy: another thread may leave its context meanwhile
            return (latest[0] if latest else own)(*arguments, **options)

        return cls(own, stand_in, active)


class _Imports(MetaPathFinder):
    """Puts torch's own functions into their places while a module of torch is imported."""

    def __init__(self) -> None:
        self.places: list[ReplacedFunction] = []
        """The places with an active context."""
        self.under_way = 0
        """Modules of torch that are being imported."""

    def watch(self) -> None:
        """Watch imports from now on; without an active context, no import changes.

        The finder stays: an import of another thread goes through the list, and would skip the next finder.
        """
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of torch while a context is active; None for any other module."""
        if not (self.places and fullname.startswith("torch.")):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderOfTorch(spec.loader)
        return spec

    @contextmanager
    def importing(self) -> Generator[None]:
        """Have torch's own functions in their places."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with LOCK:
            self.under_way += change
            for place in self.places:
                place.put(is_own=self.under_way > 0)


class _LoaderOfTorch(Loader):
    """The loader of a module of torch, which executes it with torch's own functions in their places."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module's loader."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the module's loader create it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, which then has its own loader."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with IMPORTS.importing():
            self._loader.exec_module(module)


IMPORTS: Final = _Imports()
