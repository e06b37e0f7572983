"""The first look at argv: what must be known before plugins are loaded.

Knows no command's own flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import ConfigError, did_you_mean

CONFIG: Final = "config"
LISTS: Final = frozenset({"plugins"})
STARTUP: Final = frozenset({CONFIG, "plugins", "plugins_lock", "log_level", "log_format"})
"""Flags recognised before and after the command; all but `config` are configuration fields."""


@dataclass(slots=True)
class Startup:
    """What the first look found."""

    command: str | None = None
    rest: list[str] = field(default_factory=list)
    """The command's arguments, start-up flags taken out."""
    given: dict[str, list[str]] = field(default_factory=dict)
    """Values of start-up flags, by field name."""
    version: bool = False
    wants_help: bool = False
    """Help for the whole program was asked for, before any command."""

    def last(self, name: str) -> str | None:
        """Return the last value given for a flag that takes one."""
        return self.given[name][-1] if name in self.given else None


def read_startup(argv: Sequence[str]) -> Startup:
    """Take command and start-up flags out of argv.

    Raises `ConfigError` for any other flag before the command.
    """
    found = Startup()
    tokens = list(argv)
    while tokens and found.command is None:
        token = tokens.pop(0)
        if token in ("--help", "-h"):
            found.wants_help = True
        elif token == "--version":
            found.version = True
        elif not token.startswith("-"):
            found.command = token
        elif not _take(found, token, tokens, most=1):
            hint = did_you_mean(token, _FLAGS)
            raise ConfigError(
                f"unknown flag {token} before the command{hint}; other flags come after it."
            )
    while tokens:
        token = tokens.pop(0)
        if token == "--":
            found.rest += [token, *tokens]
            break
        if not _take(found, token, tokens, most=None):
            found.rest.append(token)
    return found


_FLAGS: Final[Mapping[str, str]] = {"--" + name.replace("_", "-"): name for name in sorted(STARTUP)}


def _take(found: Startup, token: str, tokens: list[str], most: int | None) -> bool:
    """Consume a start-up flag and its values; before the command a list takes one, lest it swallow
    the command.
    """
    if token == "--debug":
        found.given["log_level"] = ["debug"]
        return True
    flag, assigned, value = token.partition("=")
    name = _FLAGS.get(flag.replace("_", "-"))
    if name is None:
        return False
    values = [value] if assigned else []
    most = most if name in LISTS else 1
    while (
        not assigned
        and tokens
        and not tokens[0].startswith("-")
        and (most is None or len(values) < most)
    ):
        values.append(tokens.pop(0))
    if not values:
        raise ConfigError(f"{flag} needs a value.")
    found.given.setdefault(name, []).extend(values)
    return True
