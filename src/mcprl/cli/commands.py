"""Typer apps with plain-text help: whole sentences, and one notation for arguments (RECIPE, [RUN], FILE...).

The types of Typer's own copy of click are private, hence `Any`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from mcprl.errors import McprlError

_TYPES = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "path": "PATH", "file": "FILE", "dir": "FOLDER"}
_TYPE = re.compile(r"<([^<>]+)>")


def _first_sentence(help_text: str) -> str:
    """Return the first sentence of a command's help, for the list of commands."""
    return re.split(r"(?<=\.)\s", " ".join(help_text.split()), maxsplit=1)[0]


def _argument(parameter: Any) -> str:
    """Format an argument for the usage line: RECIPE, [RUN], FILE..., [FILE]..."""
    name = (parameter.metavar or parameter.name.upper()).strip("[]")
    return (name if parameter.required else f"[{name}]") + ("..." if parameter.nargs != 1 else "")


class _PlainHelp:
    """A mixin that makes Typer's command and group classes print plain-text help."""

    def get_help_option(self: Any, ctx: Any) -> Any:
        option = cast("Any", super()).get_help_option(ctx)
        option.default = False  # Without a default, Typer would import pydantic to convert an absent flag.
        return option

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        arguments = [_argument(parameter) for parameter in self.params if parameter.param_type_name == "argument"]
        return [self.options_metavar, *arguments, *([self.subcommand_metavar] if isinstance(self, TyperGroup) else [])]

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx)
            if parameter.param_type_name == "argument":
                name, text = _argument(parameter), text.removesuffix("  [required]")
            name = _TYPE.sub(lambda found: _TYPES.get(found[1], found[1]), name)
            records[parameter.param_type_name].append((name, text))
        for kind, rows in records.items():
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


class _Command(_PlainHelp, TyperCommand):
    pass


class Group(_PlainHelp, TyperGroup):
    """A command with subcommands. A subcommand given as a `partial` is created when it is used."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        return cast("Any", command()) if isinstance(command, partial) else command

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def _summary(self, ctx: Any, name: str) -> str:
        try:
            return _first_sentence(self.get_command(ctx, name).help or "")
        except McprlError as error:  # if a package is broken, the other commands are still listed
            return f"{error.code} {error.what}"


class Commands(typer.Typer):
    """A group of commands: Commands("List runs, or show one.")."""

    def __init__(self, help_text: str = "", group: type[Group] = Group) -> None:
        super().__init__(
            cls=group,
            help=help_text,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return super().command(name, cls=_Command, **options)
