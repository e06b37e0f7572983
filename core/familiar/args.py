"""`EngineArgs`: everything that can be configured, as a dataclass that is taken apart into keywords
of `LLM`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from core.cli.flags import flag_shape
from core.config.build import given
from core.config.fields import Field, FieldTable
from core.plugin import load_plan, make_plan

TABLE = FieldTable(load_plan(make_plan([], None)).options())
"""All sections' fields and the options of the plugins that are on by themselves."""


class Args:
    """What both have: reading a command line."""

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for every field to a parser, and return it."""
        for found in _fields(cls):
            spellings = dict.fromkeys((found.flag, "--" + found.name))
            parser.add_argument(
                *spellings, dest=found.name, **{**flag_shape(found.type), "default": None}
            )
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return what a command line says; other names in `args` are passed over.

        Raises `ConfigError`.
        """
        said = {found.name: (found, getattr(args, found.name, None)) for found in _fields(cls)}
        values = {name: (found, raw) for name, (found, raw) in said.items() if raw is not None}
        return cls(
            **{
                name: given(found, raw, found.flag, found.flag).value
                for name, (found, raw) in values.items()
            }
        )


def _fields(kind: type[Any]) -> list[Field]:
    return [
        TABLE.by_name[item.name] for item in dataclasses.fields(kind) if item.name in TABLE.by_name
    ]


def _default(found: Field) -> Any:
    if isinstance(found.default, (list, dict)):
        factory: Callable[[], Any] = partial(copy.deepcopy, found.default)
        return dataclasses.field(default_factory=factory)
    return found.default


def _made(name: str, doc: str) -> type[Args]:
    # The model first, which is given without its name.
    names = ["model", *(name for name in TABLE.by_name if name != "model")]
    fields = [(name, Any, _default(TABLE.by_name[name])) for name in names]
    return dataclasses.make_dataclass(
        name, fields, bases=(Args,), namespace={"__doc__": doc, "__module__": __name__}
    )


EngineArgs = _made(
    "EngineArgs",
    "Settings of an engine: `LLM(**dataclasses.asdict(args))`, `LLMEngine.from_engine_args(args)`.",
)
AsyncEngineArgs = _made(
    "AsyncEngineArgs", "Settings of an engine that serves: `AsyncLLMEngine.from_engine_args(args)`."
)
