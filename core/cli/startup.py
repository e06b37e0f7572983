"""The first parse of argv: flags that must be known before plugins are loaded."""

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
    """Result of the first parse."""

    command: str | None = None
    rest: list[str] = field(default_factory=list)
    """The command's arguments, without start-up flags."""
    given: dict[str, list[str]] = field(default_factory=dict)
    """Values of start-up flags, by field name."""
    version: bool = False
    wants_help: bool = False
    """True: `--help` comes before any command."""

    def last(self, name: str) -> str | None:
        """Return the last value of a flag that takes one."""
        return self.given[name][-1] if name in self.given else None


def read_startup(argv: Sequence[str]) -> Startup:
    """Extract the command and start-up flags from argv.

    Raises `ConfigError` for other flags before the command.
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
        elif not _consume(found, token, tokens, max_values=1):
            hint = did_you_mean(token, _FLAGS)
            raise ConfigError(
                f"unknown flag {token} before the command{hint}; other flags come after it."
            )
    while tokens:
        token = tokens.pop(0)
        if token == "--":
            found.rest += [token, *tokens]
            break
        if not _consume(found, token, tokens, max_values=None):
            found.rest.append(token)
    return found


_FLAGS: Final[Mapping[str, str]] = {"--" + name.replace("_", "-"): name for name in sorted(STARTUP)}


def _consume(found: Startup, token: str, tokens: list[str], max_values: int | None) -> bool:
    """Consume a start-up flag and its values; return False for other tokens.

    Before the command a list takes one value, so that it does not consume the command.
    """
    if token == "--debug":
        found.given["log_level"] = ["debug"]
        return True
    flag, assigned, value = token.partition("=")
    name = _FLAGS.get(flag.replace("_", "-"))
    if name is None:
        return False
    values = [value] if assigned else []
    if name not in LISTS:
        max_values = 1
    while not assigned and tokens and not tokens[0].startswith("-"):
        if max_values is not None and len(values) >= max_values:
            break
        values.append(tokens.pop(0))
    if not values:
        raise ConfigError(f"{flag} needs a value.")
    found.given.setdefault(name, []).extend(values)
    return True
