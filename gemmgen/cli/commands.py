"""Commands that are imported when they run: `gemmgen --help` needs their names and lines of help alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, cast

import typer
from typer.core import TyperCommand, TyperGroup


def argument_name(argument: Any) -> str:
    """Return an argument of a command as its declaration names it, in brackets if it can be left out."""
    return argument.metavar or argument.name.upper()


class HelpedCommand(TyperCommand):
    """A command whose help names arguments as their declarations do.

    Typer adds a second pair of brackets, a second ellipsis, and the type of Python: ``{SPEC…}...``.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002  click passes it
        """Return the words of the usage after the name of the command."""
        return ["[OPTIONS]", *(argument_name(each) for each in self.params if _is_argument(each))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, each with its help."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                name, text = record
                if _is_argument(each):
                    rows["Arguments"].append((argument_name(each), text))
                else:
                    rows["Options"].append((name, text))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


class ListedCommand(TyperCommand):
    """The name of a command and its line of help; its module is imported when it runs.

    `place` names the function of the command in this package, as ``module:function``. A test compares `line`
    with the first line of the function's docstring. `kind` is the class of the command with its options.
    """

    def __init__(self, name: str, place: str, line: str, kind: type[TyperCommand] = HelpedCommand) -> None:
        super().__init__(name=name, help=line)
        self._place = place
        self._kind = kind

    def loaded(self) -> TyperCommand:
        """Import the module of the command, and return the command with its options and its whole help."""
        module, _, function = self._place.partition(":")
        action: Callable[..., object] = getattr(import_module(f"{__package__}.{module}"), function)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name=self.name, cls=self._kind)(action)
        return cast("TyperCommand", typer.main.get_command(alone))


class ListedGroup(TyperGroup):
    """A group of listed commands; the one that a command line names is imported, and no other."""

    listed: ClassVar[tuple[ListedCommand, ...]] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.listed:
            self.add_command(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command that the arguments begin with, the command, and the rest of them."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.loaded() if isinstance(command, ListedCommand) else command, rest
