"""Grid of a sweep: settings from files, command lines, and result names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.api import ConfigError
from core.api.config import read_option_json

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of server and benchmark settings."""

    serve: Settings
    bench: Settings

    @property
    def folder(self) -> str:
        """Reproducible folder name of the point."""
        parts = [
            f"{group}-{_name(settings)}"
            for group, settings in (("serve", self.serve), ("bench", self.bench))
        ]
        return "--".join(parts)


def read_settings(flag: str, path: str | None) -> list[Settings]:
    """Return the combinations: a list of objects, or an object of named objects. No file: one empty
    combination.

    Raises `ConfigError`.
    """
    if path is None:
        return [{}]
    value = read_option_json(flag, path)
    if isinstance(value, dict):
        value = [
            {"_name": name, **each} if isinstance(each, dict) else each
            for name, each in value.items()
        ]
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(each, dict) for each in value)
    ):
        raise ConfigError(
            f'{flag} {path}: give a list of objects, such as [{{"max_num_seqs": 8}}].'
        )
    return value


def points(
    serve: Sequence[Settings], bench: Sequence[Settings]
) -> Iterator[tuple[Settings, list[Point]]]:
    """Yield the settings of each server with all its points."""
    for settings in serve:
        yield settings, [Point(settings, each) for each in bench]


def command(base: str, settings: Settings) -> list[str]:
    """Return a command line with the settings as flags.

    Replaces flags that the command has; true gives a bare flag, false `--no-`.
    """
    words = shlex.split(base)
    for name, value in settings.items():
        if name == "_name":
            continue
        flag = "--" + name.lstrip("-").replace("_", "-")
        words = _without(words, flag)
        if value is True:
            words.append(flag)
        elif value is False:
            words.append(f"--no-{flag[2:]}")
        elif value is not None:
            words += [flag, json.dumps(value) if isinstance(value, (dict, list)) else str(value)]
    return words


def _without(words: list[str], flag: str) -> list[str]:
    """Return the words without a flag and its value."""
    remaining: list[str] = []
    dropping = False
    for word in words:
        is_flag = word.startswith("--")
        if is_flag:
            name = word.partition("=")[0].replace("_", "-")
            dropping = name == flag
            if dropping:
                dropping = "=" not in word
                continue
        if not dropping:
            remaining.append(word)
    return remaining


def _name(settings: Settings) -> str:
    if "_name" in settings:
        return _safe(str(settings["_name"]))
    return _safe(",".join(f"{name}={value}" for name, value in settings.items())) or "plain"


def _safe(text: str) -> str:
    return "".join(c if c.isalnum() or c in "=,._" else "_" for c in text)[:100]
