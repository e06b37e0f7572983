"""The whole command line as one argparse parser: commands, subcommands, flags and their values."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from core.api.config import Field, FieldTable, field_doc, is_switch, metavar, section_docs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.api import Command
    from core.api.plugins import LoadedRegistry

FOLDERS: Final = ("dir", "root", "roots", "path", "folder")
"""Last words of the names of arguments that are folders."""
FILES: Final = ("file", "config", "certfile", "keyfile", "certs", "journal", "lock", "template")
"""Last words of the names of arguments that are files."""
GLOBAL: Final = ("--plugins", "--plugins-lock", "--config", "--log-level", "--log-format")
"""Flags before the command."""


def command_line(registry: LoadedRegistry) -> argparse.ArgumentParser:
    """Return a parser of all commands of the loaded plugins, for completion only."""
    table = FieldTable(registry.options())
    docs = section_docs()
    parser = argparse.ArgumentParser("engine")
    for flag in GLOBAL:
        found = table.by_name.get(flag[2:].replace("-", "_"))
        if found is None:
            _set_values(parser.add_argument(flag, help="configuration file"))
        else:
            _add_flag(parser, found, docs)
    parser.add_argument("--debug", action="store_true", help="log everything")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for registered in registry.entries("commands"):
        command = registry.load(registered, probe=True)()
        _add_command(commands, registered.entry.name, command, table, docs)
    return parser


def _add_command(
    commands: Any, name: str, command: Command, table: FieldTable, docs: Mapping[str, str]
) -> None:
    parser = commands.add_parser(name, help=_first_sentence(command.help))
    subcommands: Mapping[str, Any] | None = getattr(command, "subcommands", None)
    if subcommands is not None:
        inner = parser.add_subparsers()
        for subname, subcommand in subcommands.items():
            _add_command(inner, subname, subcommand(), table, docs)
        return
    command.add_arguments(parser)
    for action in parser._actions:
        action.help = _first_sentence(action.help or "")
        _set_values(action)
    if command.takes_engine_options:
        _set_values(parser.add_argument("--config", help="configuration file"))
        taken = set(parser._option_string_actions)
        for found in table.by_name.values():
            if not found.refuse and found.flag not in taken:
                _add_flag(parser, found, docs)


def _add_flag(parser: argparse.ArgumentParser, found: Field, docs: Mapping[str, str]) -> None:
    """Add the flag of a field, with its choices."""
    text = _first_sentence(field_doc(found, docs))
    if is_switch(found.type):
        parser.add_argument(found.flag, action=argparse.BooleanOptionalAction, help=text)
        return
    values = found.type.items or found.type
    many = "+" if found.type.items else None
    action = parser.add_argument(
        found.flag,
        help=text,
        nargs=many,
        metavar=metavar(found.type),
        choices=values.choices or None,
    )
    _set_values(action)


def _set_values(action: argparse.Action) -> None:
    """Complete files and folders by the name of an argument."""
    import shtab  # lazy: only this command needs it

    last = (action.option_strings or [action.dest])[-1].replace("_", "-").rpartition("-")[2].lower()
    if action.choices or action.nargs == 0:
        return
    if last in FOLDERS or action.dest == "model":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif last in FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]


def _first_sentence(text: str) -> str:
    """Return the first sentence, without what argparse or a shell would expand."""
    sentence = text.split(". ")[0].split("\n\n")[0]
    return " ".join(sentence.split()).replace("%", "%%").replace("`", "'")
