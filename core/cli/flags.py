"""Flags from the field table: the second parse, dotted keys, spellings and help."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from core.cli.field_docs import field_doc, section_docs, show_default
from core.cli.vllm_flags import ALIASES, INVERSES, RENAMED, SHORT
from core.config.build import Layer, Setting, convert_setting
from core.config.fields import Field, FieldTable, argparse_options, is_switch
from core.errors import ConfigError, did_you_mean

LIST_GROUPS: Final = "listgroup"
"""`--help=listgroup` names the groups."""
PLANNED: Final = "planned"
"""`--help=planned` lists the known options that are refused."""
EPILOG: Final = (
    "Before or after the command: --plugins NAME, --plugins-lock FILE, --config FILE, --log-level "
    "LEVEL, --debug. --help=GROUP shows one group (--help=listgroup names them), --help=TEXT the "
    "flags that contain it, --help=planned the flags known from vLLM that are refused for now."
)

_DEST: Final = "config:"
_DOTTED: Final = re.compile(r"(--?[A-Za-z][\w-]*)\.([^=\s]+)(?:=(.*))?", re.DOTALL)
_LONG: Final = {short: name for name, short in SHORT.items()}

log = logging.getLogger(__name__)


class FlagParser(argparse.ArgumentParser):
    """An argument parser that raises `ConfigError`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError` instead of exiting the process."""
        raise ConfigError(f"{message[:1].lower()}{message[1:]} (see {self.prog} --help)")

    def parse_all(self, argv: Sequence[str], known: Iterable[str] = ()) -> argparse.Namespace:
        """Parse all arguments. Raises `ConfigError` with similar flags for an unknown one."""
        namespace, extra = self.parse_known_args(argv)
        for token in extra:
            flag = token.partition("=")[0]
            sort = "flag" if token.startswith("-") else "argument"
            hint = ""
            if flag.startswith("--"):  # short flags are too similar for a suggestion
                hint = did_you_mean(flag, known)
            raise ConfigError(f"unknown {sort} {flag}{hint} (see {self.prog} --help)")
        return namespace


def add_flags(
    parser: FlagParser,
    table: FieldTable,
    *,
    docs: Mapping[str, str] | None = None,
    visible: Callable[[Field], bool] = lambda found: not found.refuse,
) -> None:
    """Add a flag for each field, in one group per section and plugin.

    Without `docs`, the flags have no help texts.
    """
    for group, fields in table.groups().items():
        description = None
        if docs is not None and any(map(visible, fields)):
            description = docs.get(f"[{group}]")
        arguments = parser.add_argument_group(group, description)
        for found in fields:
            text = argparse.SUPPRESS
            if docs is not None and visible(found):
                text = _help(found, docs)
            try:
                arguments.add_argument(
                    *_spellings(found),
                    dest=_DEST + found.name,
                    help=text,
                    **argparse_options(found.type),
                )
            except argparse.ArgumentError as error:
                raise ConfigError(
                    f"{parser.prog} and option {found.name!r} of {group!r} clash: {error}"
                ) from error


def parse_flags(
    parser: FlagParser, table: FieldTable, argv: Sequence[str]
) -> tuple[argparse.Namespace, Layer]:
    """Return a command's own arguments and the layer of configuration flags."""
    fields = table.by_name.values()
    known = {flag for found in fields for flag in _all_spellings(found)}
    tokens = [_respell(token, known) for token in _replace_renamed(argv)]
    argv, dotted = split_dotted(tokens, partial(_mapping_option, table))
    accepted = (flag for found in fields if not found.refuse for flag in _all_spellings(found))
    namespace = parser.parse_all(argv, accepted)
    layer: dict[str, Setting] = {}
    for dest, raw in list(vars(namespace).items()):
        if dest.startswith(_DEST):
            delattr(namespace, dest)
            found = table.by_name[dest.removeprefix(_DEST)]
            if found.type.optional and raw == ["None"]:
                raw = None
            layer[found.name] = convert_setting(found, raw, f"flag {found.flag}", found.flag)
    for name, keys in dotted.items():
        found = table.by_name[name]
        base = layer[name].value if name in layer else {}
        layer[name] = convert_setting(
            found, _merged(base or {}, keys), f"flag {found.flag}", found.flag
        )
    return namespace, layer


def format_help(parser: FlagParser, table: FieldTable, topic: str) -> str:
    """Return a command's help.

    `topic` selects one group, the flags that contain a text, or the planned flags; "": everything.
    `parser` has only the command's own arguments so far.
    """
    usage = parser.format_usage().removeprefix("usage: ").strip() + " [options]"
    if not topic:
        parser.usage = usage
        parser.epilog = EPILOG
        add_flags(parser, table, docs=section_docs())
        return parser.format_help()
    if topic == LIST_GROUPS:
        docs = section_docs()
        return "".join(
            f"{name:<18} {docs.get(f'[{name}]', 'options of a plugin')}\n"
            for name in table.groups()
        )
    short = FlagParser(prog=parser.prog, usage=usage, add_help=False)
    if topic == PLANNED:
        add_flags(short, table, docs=section_docs(), visible=lambda found: bool(found.refuse))
    else:
        add_flags(short, _select(table, topic), docs=section_docs(), visible=lambda found: True)
    return short.format_help()


def _select(table: FieldTable, topic: str) -> FieldTable:
    """Return a table of one group, or of the fields with the text in their flag."""
    key = topic.lstrip("-").replace("-", "_").lower()
    groups = {name.lower(): fields for name, fields in table.groups().items()}
    fields = groups.get(key) or groups.get(key.removesuffix("config"))
    fields = fields or [found for name, found in table.by_name.items() if key in name]
    if not fields:
        accepted = [name for name, found in table.by_name.items() if not found.refuse]
        hint = did_you_mean(key, [*groups, *accepted])
        raise ConfigError(
            f"--help={topic}: no group or flag of that name{hint}; groups: {', '.join(groups)}."
        )
    selected = FieldTable()
    selected.by_name = {found.name: found for found in fields}
    return selected


def _help(found: Field, docs: Mapping[str, str]) -> str:
    default = "" if found.default is None else f" (default: {show_default(found.default)})"
    return (found.refuse or field_doc(found, docs) + default).replace("%", "%%")


def _spellings(found: Field) -> list[str]:
    short = SHORT.get(found.name)
    return [found.flag] + ([short] if short else [])


def _all_spellings(found: Field) -> list[str]:
    negated = [found.flag.replace("--", "--no-", 1)] if is_switch(found.type) else []
    return _spellings(found) + negated


def _replace_renamed(argv: Sequence[str]) -> list[str]:
    """Return argv with the new names of renamed flags. Logs a warning for each."""
    out = []
    for token in argv:
        new = RENAMED.get(token.replace("_", "-"))
        if new is not None:
            log.warning("[DEPRECATED] %s is now called %s", token, new)
        out.append(new or token)
    return out


def _respell(token: str, known: set[str]) -> str:
    """Return the token in the canonical spelling of its flag; others are unchanged."""
    flag, assigned, value = token.partition("=")
    if not flag.startswith("--"):
        return token
    dashed = flag.replace("_", "-")
    dashed = ALIASES.get(dashed, dashed)
    if dashed not in known:
        dashed = _inverse(dashed, known)
    return dashed + assigned + value if dashed in known else token


def _inverse(flag: str, known: set[str]) -> str:
    """Return the `--no-` form of the switch that the flag turns off; else the flag."""
    for prefix, other in INVERSES:
        off = flag.replace(prefix, f"--no-{other[2:]}", 1)
        if flag.startswith(prefix) and off in known:
            return off
    return flag


def _mapping_option(table: FieldTable, flag: str) -> str | None:
    found = table.by_name.get(_LONG.get(flag) or flag.lstrip("-").replace("-", "_"))
    return found.name if found is not None and found.type.mapping else None


def split_dotted(
    argv: Iterable[str], option: Callable[[str], str | None]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the other tokens, and the objects from `--name.key value` by option.

    `option` names a flag's option; None: it takes no object. A value is parsed as JSON if possible.
    """
    others: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    tokens = iter(argv)
    for token in tokens:
        match = _DOTTED.fullmatch(token)
        name = None if match is None else option(match[1])
        if match is None or name is None:
            others.append(token)
            continue
        text = match[3] if match[3] is not None else next(tokens, None)
        if text is None:
            raise ConfigError(f"{token}: got no value; expected one after it. Add one.")
        value: Any = _json_or_text(text)
        for key in reversed(match[2].split(".")):
            value = {key: value}
        objects[name] = _merged(objects.get(name, {}), value)
    return others, objects


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`. Nested objects are merged too."""
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = value
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(inner, value)
    return merged
