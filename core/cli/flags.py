"""Flags from the field table: the second parse, dotted keys, spellings and help."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from core.cli.field_docs import field_doc, section_docs
from core.cli.reference_page import is_switch, metavar, show_default
from core.config.build import Given, Layer, given
from core.config.fields import Field, FieldTable
from core.config.values import ValueType
from core.errors import ConfigError, did_you_mean

SHORT: Final[Mapping[str, str]] = {
    "attention_config": "-ac",
    "compilation_config": "-cc",
    "data_parallel_address": "-dpa",
    "data_parallel_backend": "-dpb",
    "data_parallel_external_lb": "-dpe",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_rank": "-dpn",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_size": "-dp",
    "data_parallel_size_local": "-dpl",
    "data_parallel_start_rank": "-dpr",
    "decode_context_parallel_size": "-dcp",
    "nnodes": "-n",
    "node_rank": "-r",
    "optimization_level": "-O",
    "pipeline_parallel_size": "-pp",
    "prefill_context_parallel_size": "-pcp",
    "quantization": "-q",
    "tensor_parallel_size": "-tp",
}
"""Spellings people know, whoever brings the option."""
RENAMED: Final[Mapping[str, str]] = {
    "--disable-log-requests": "--no-enable-log-requests",
    "--no-disable-log-requests": "--enable-log-requests",
}
"""Flags that still work, with a warning, and what is to be written instead."""
LIST_GROUPS: Final = "listgroup"
"""`--help=listgroup` names the groups."""
PLANNED: Final = "planned"
"""`--help=planned` lists the options that are known but refused."""
EPILOG: Final = (
    "Before or after the command: --plugins NAME, --plugins-lock FILE, --config FILE, --log-level "
    "LEVEL, --debug. "
    "--help=GROUP shows one group (--help=listgroup names them), --help=TEXT the flags that "
    "contain it, --help=planned the flags known from "
    "vLLM that are refused for now."
)

_DEST: Final = "config:"
_DOTTED: Final = re.compile(r"(--?[A-Za-z][\w-]*)\.([^=\s]+)(?:=(.*))?", re.DOTALL)
_LONG: Final = {short: name for name, short in SHORT.items()}

log = logging.getLogger(__name__)


class FlagParser(argparse.ArgumentParser):
    """An argument parser whose complaints are `ConfigError`s."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the process."""
        raise ConfigError(f"{message[:1].lower()}{message[1:]} (see {self.prog} --help)")

    def parse_all(self, argv: Sequence[str], known: Iterable[str] = ()) -> argparse.Namespace:
        """Parse, with a did-you-mean for what is left over."""
        namespace, extra = self.parse_known_args(argv)
        for token in extra:
            flag = token.partition("=")[0]
            what = "flag" if token.startswith("-") else "argument"
            hint = (
                did_you_mean(flag, known) if flag.startswith("--") else ""
            )  # short ones are all alike
            raise ConfigError(f"unknown {what} {flag}{hint} (see {self.prog} --help)")
        return namespace


def add_flags(
    parser: FlagParser,
    table: FieldTable,
    *,
    docs: Mapping[str, str] | None = None,
    visible: Callable[[Field], bool] = lambda found: not found.refuse,
) -> None:
    """Add a flag for every field, in a group per section and plugin; texts only where `docs` are
    given.
    """
    for group, fields in table.groups().items():
        shown = docs is not None and any(map(visible, fields))
        box = parser.add_argument_group(
            group, docs.get(f"[{group}]") if docs is not None and shown else None
        )
        for found in fields:
            text = _help(found, docs) if docs is not None and visible(found) else argparse.SUPPRESS
            try:
                box.add_argument(
                    *_spellings(found), dest=_DEST + found.name, help=text, **flag_shape(found.type)
                )
            except argparse.ArgumentError as error:
                raise ConfigError(
                    f"{parser.prog} and option {found.name!r} of {group!r} clash: {error}"
                ) from error


def parse_flags(
    parser: FlagParser, table: FieldTable, argv: Sequence[str]
) -> tuple[argparse.Namespace, Layer]:
    """Parse a command's arguments; return its own and the layer of configuration flags."""
    flags = [flag for found in table.by_name.values() for flag in _all_spellings(found)]
    known = set(flags)
    argv, dotted = _take_dotted([_respell(token, known) for token in _renamed(argv)], table)
    taken = (
        flag
        for found in table.by_name.values()
        if not found.refuse
        for flag in _all_spellings(found)
    )
    namespace = parser.parse_all(argv, taken)
    layer: dict[str, Given] = {}
    for dest, raw in list(vars(namespace).items()):
        if dest.startswith(_DEST):
            delattr(namespace, dest)
            found = table.by_name[dest.removeprefix(_DEST)]
            if found.type.optional and raw == ["None"]:
                raw = None
            layer[found.name] = given(found, raw, f"flag {found.flag}", found.flag)
    for name, keys in dotted.items():
        found = table.by_name[name]
        base = layer[name].value if name in layer else {}
        layer[name] = given(found, _merged(base or {}, keys), f"flag {found.flag}", found.flag)
    return namespace, layer


def show_help(parser: FlagParser, table: FieldTable, wanted: str) -> str:
    """Return a command's help: all of it, one group, the flags that contain a text, or the planned
    ones.

    `parser` has the command's own arguments and nothing else yet.
    """
    usage = parser.format_usage().removeprefix("usage: ").strip() + " [options]"
    if not wanted:
        parser.usage = usage
        parser.epilog = EPILOG
        add_flags(parser, table, docs=section_docs())
        return parser.format_help()
    if wanted == LIST_GROUPS:
        docs = section_docs()
        return "".join(
            f"{name:<18} {docs.get(f'[{name}]', 'options of a plugin')}\n"
            for name in table.groups()
        )
    short = FlagParser(prog=parser.prog, usage=usage, add_help=False)
    if wanted == PLANNED:
        add_flags(short, table, docs=section_docs(), visible=lambda found: bool(found.refuse))
    else:
        add_flags(short, _only(table, wanted), docs=section_docs(), visible=lambda found: True)
    return short.format_help()


def _only(table: FieldTable, wanted: str) -> FieldTable:
    """Return a table of one group, or of the fields whose flag contains the text."""
    key = wanted.lstrip("-").replace("-", "_").lower()
    groups = {name.lower(): fields for name, fields in table.groups().items()}
    fields = groups.get(key) or groups.get(key.removesuffix("config"))
    fields = fields or [found for name, found in table.by_name.items() if key in name]
    if not fields:
        hint = did_you_mean(
            key, [*groups, *(name for name, found in table.by_name.items() if not found.refuse)]
        )
        raise ConfigError(
            f"--help={wanted}: no group or flag of that name{hint}; groups: {', '.join(groups)}."
        )
    chosen = FieldTable()
    chosen.by_name = {found.name: found for found in fields}
    return chosen


def _help(found: Field, docs: Mapping[str, str]) -> str:
    default = "" if found.default is None else f" (default: {show_default(found.default)})"
    return (found.refuse or field_doc(found, docs) + default).replace("%", "%%")


def _spellings(found: Field) -> list[str]:
    short = SHORT.get(found.name)
    return [found.flag] + ([short] if short else [])


def _all_spellings(found: Field) -> list[str]:
    return _spellings(found) + (
        [found.flag.replace("--", "--no-", 1)] if is_switch(found.type) else []
    )


def flag_shape(kind: ValueType) -> dict[str, Any]:
    """Return how argparse must collect the raw texts; converting them is the field's business."""
    shape: dict[str, Any] = {"default": argparse.SUPPRESS}
    if is_switch(kind):
        return shape | {"action": argparse.BooleanOptionalAction}
    shape["metavar"] = metavar(kind)
    if bool in kind.scalars:
        return shape | {"nargs": "?", "const": True}
    if kind.items is not None:
        return shape | (
            {"nargs": kind.length} if kind.length else {"nargs": "+", "action": "extend"}
        )
    return shape


def _renamed(argv: Sequence[str]) -> list[str]:
    """Put the new names of flags for their old ones, with a warning."""
    out = []
    for token in argv:
        new = RENAMED.get(token.replace("_", "-"))
        if new is not None:
            log.warning("[DEPRECATED] %s is now called %s", token, new)
        out.append(new or token)
    return out


def _respell(token: str, known: set[str]) -> str:
    """Turn underscores of a known flag into dashes; other tokens stay as they are."""
    flag, assigned, value = token.partition("=")
    dashed = flag.replace("_", "-")
    return dashed + assigned + value if flag.startswith("--") and dashed in known else token


def _take_dotted(argv: list[str], table: FieldTable) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Take `--name.key value` out of argv; values are JSON where they can be."""
    left: list[str] = []
    taken: dict[str, dict[str, Any]] = {}
    tokens = iter(argv)
    for token in tokens:
        match = _DOTTED.fullmatch(token)
        found = (
            table.by_name.get(_LONG.get(match[1]) or match[1].lstrip("-").replace("-", "_"))
            if match
            else None
        )
        if match is None or found is None or not found.type.mapping:
            left.append(token)
            continue
        text = match[3] if match[3] is not None else next(tokens, None)
        if text is None:
            raise ConfigError(f"{token} needs a value.")
        value: Any = _json_or_text(text)
        for key in reversed(match[2].split(".")):
            value = {key: value}
        taken[found.name] = _merged(taken.get(found.name, {}), value)
    return left, taken


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid on it, objects inside objects included."""
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = (
            _merged(inner, value)
            if isinstance(inner, Mapping) and isinstance(value, Mapping)
            else value
        )
    return merged
