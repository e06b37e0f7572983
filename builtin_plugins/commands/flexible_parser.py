"""`FlexibleArgumentParser`: the command line of a Python script, read as vLLM reads it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from core.api import ConfigError, did_you_mean
from core.api.config import read_config_file, split_dotted

CONFIG: Final = "--config"


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An argument parser for flags in any of vLLM's spellings.

    `--max_model_len` is `--max-model-len`, and `--hf-overrides.key VALUE` a key of the object
    `--hf-overrides`. `--config FILE` reads a YAML or TOML file of flags, which those of the command
    line override, unless the script has a flag of that name.
    """

    def parse_known_args(  # type: ignore[override]  # argparse overloads the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the values of the known arguments, and the other arguments."""
        tokens = [self._respell(token) for token in (sys.argv[1:] if args is None else args)]
        tokens, path = self._without_config(tokens)
        namespace = argparse.Namespace() if namespace is None else namespace
        if path is not None:
            self._read_file(path, {token.partition("=")[0] for token in tokens}, namespace)
        return super().parse_known_args(self._join_dotted(tokens), namespace)

    def _flag(self, flag: str) -> argparse.Action | None:
        return self._option_string_actions.get(flag)

    def _respell(self, token: str) -> str:
        """Return a token in the parser's spelling of its flag; other tokens are unchanged."""
        found = re.match(r"--[\w-]+", token)
        if found is None or self._flag(found[0]) is not None:
            return token
        for spelling in (found[0].replace("_", "-"), "--" + found[0][2:].replace("-", "_")):
            if self._flag(spelling) is not None or spelling == CONFIG:
                return spelling + token[found.end() :]
        return token

    # --- files

    def _without_config(self, tokens: Sequence[str]) -> tuple[list[str], str | None]:
        """Return the tokens before and after `--config FILE`, and the file."""
        if self._flag(CONFIG) is not None:
            return list(tokens), None
        others: list[str] = []
        path: str | None = None
        rest = iter(tokens)
        for token in rest:
            flag, assigned, value = token.partition("=")
            if flag != CONFIG:
                others.append(token)
                continue
            if path is not None:
                self.error(f"{CONFIG}: got two files; expected one. Put all flags into one file.")
            path = value if assigned else next(rest, None)
            if not path:
                self.error(f"{CONFIG}: expected a YAML or TOML file after it.")
        return others, path

    def _read_file(self, path: str, given: Set[str], namespace: argparse.Namespace) -> None:
        """Set the values of a file's keys, but not of flags that are `given`.

        Values are converted as those of the flags are. Keys in tables are flags as well.
        """
        try:
            file = read_config_file(path)
        except ConfigError as error:
            self.error(str(error))
        keys = [(key, value, "") for key, value in file.content.items()]
        for key, value, table in keys:
            flag = self._respell(f"--{key}")
            action = self._flag(flag)
            if action is None and isinstance(value, Mapping) and not table:
                keys += [(str(inner), each, key) for inner, each in value.items()]
                continue
            if action is None:
                hint = did_you_mean(flag, self._option_string_actions)
                self.error(f"{file.location(key, table or None)}: unknown key {key!r}{hint}")
            tokens = _tokens(action, flag, value, negated=self._flag(f"--no-{flag[2:]}"))
            if not tokens or not given.isdisjoint(action.option_strings):
                continue
            one = argparse.ArgumentParser(prog=f"{path}: {key}", add_help=False)
            one._add_action(action)
            one.parse_args(tokens, namespace)
            action.required = False

    # --- objects

    def _join_dotted(self, tokens: Sequence[str]) -> list[str]:
        """Return the tokens with one JSON object for all `--name.key VALUE` of an option."""
        try:
            others, objects = split_dotted(tokens, self._known_flag)
        except ConfigError as error:
            self.error(str(error))
        for flag, value in objects.items():
            others += [flag, json.dumps(value)]
        return others

    def _known_flag(self, flag: str) -> str | None:
        """Return a flag in the parser's spelling; None if it has no such flag."""
        spelling = self._respell(flag)
        return None if self._flag(spelling) is None else spelling


def _tokens(
    action: argparse.Action, flag: str, value: Any, negated: argparse.Action | None
) -> list[str]:
    """Return the command line of a file's key; empty: nothing is set."""
    if value is None:
        return []
    if action.nargs == 0:  # a switch
        off = [] if negated is None else [f"--no-{flag[2:]}"]
        return [flag] if value else off
    if isinstance(value, list):
        return [flag, *(_text(each) for each in value)]
    return [f"{flag}={_text(value)}"]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
