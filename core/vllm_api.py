"""Entry points under vLLM's names: EngineArgs, LLMEngine, AsyncLLMEngine,
ModelRegistry.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from core.config.build import convert_setting
from core.config.fields import Field, FieldTable, argparse_options
from core.errors import ConfigError
from core.frontend.async_llm import AsyncLLM
from core.frontend.llm import LLM
from core.plugin import load_plan, make_plan

if TYPE_CHECKING:
    from core.contracts.text import Tokenizer

# --- settings ---------------------------------------------------------------

TABLE: Final = FieldTable(load_plan(make_plan([], None)).options())
"""Fields of all sections, and options of the plugins that load by default."""


class Args:
    """Base class of the settings: reads command lines."""

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for every field to a parser, and return it."""
        for found in _fields(cls):
            spellings = dict.fromkeys((found.flag, "--" + found.name))
            options = {**argparse_options(found.type), "default": None}
            parser.add_argument(*spellings, dest=found.name, **options)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the settings of a command line; other names are ignored. Raises `ConfigError`."""
        values = {}
        for found in _fields(cls):
            raw = getattr(args, found.name, None)
            if raw is not None:
                setting = convert_setting(found, raw, found.flag, found.flag)
                values[found.name] = setting.value
        return cls(**values)


def _fields(kind: type[Any]) -> list[Field]:
    names = (item.name for item in dataclasses.fields(kind))
    return [TABLE.by_name[name] for name in names if name in TABLE.by_name]


def _field_default(found: Field) -> Any:
    if isinstance(found.default, (list, dict)):
        factory: Callable[[], Any] = partial(copy.deepcopy, found.default)
        return dataclasses.field(default_factory=factory)
    return found.default


def _make_args(name: str, doc: str) -> type[Args]:
    # The model comes first, because it is passed as a positional argument.
    names = ["model", *(name for name in TABLE.by_name if name != "model")]
    fields = [(name, Any, _field_default(TABLE.by_name[name])) for name in names]
    namespace = {"__doc__": doc, "__module__": __name__}
    return dataclasses.make_dataclass(name, fields, bases=(Args,), namespace=namespace)


EngineArgs = _make_args(
    "EngineArgs",
    "Settings of an engine: `LLM(**dataclasses.asdict(args))`, `LLMEngine.from_engine_args(args)`.",
)
AsyncEngineArgs = _make_args(
    "AsyncEngineArgs",
    "Settings of a serving engine: `AsyncLLMEngine.from_engine_args(args)`.",
)


def keywords(engine_args: Args) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as keywords of
    `LLM`.
    """
    found = {}
    for item in dataclasses.fields(engine_args):  # type: ignore[arg-type]  # made at run time
        value = getattr(engine_args, item.name)
        if value != _default(item):
            found[item.name] = value
    return found


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is dataclasses.MISSING:
        return item.default
    return item.default_factory()


# --- engines ----------------------------------------------------------------


class LLMEngine(LLM):
    """`LLM` for stepping by hand: add requests, then call `step` until none
    is unfinished.
    """

    @classmethod
    def from_engine_args(cls, engine_args: Args, **options: Any) -> Self:
        """Start an engine. Further keywords of vLLM must be None or empty."""
        _refuse(options)
        return cls(**keywords(engine_args))

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        self.abort(request_id)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of running and waiting requests."""
        return len(self._loop)


class AsyncLLMEngine(AsyncLLM):
    """`AsyncLLM` under vLLM's older name."""

    @classmethod
    def from_engine_args(cls, engine_args: Args, **options: Any) -> Self:
        """Start an engine in its own process. Further keywords of vLLM must be None or empty."""
        _refuse(options)
        return cls(**keywords(engine_args))

    async def get_tokenizer(self) -> Tokenizer | None:
        """Return the model's tokenizer."""
        return self.tokenizer

    @property
    def is_running(self) -> bool:
        """True while the engine accepts requests, also during a restart."""
        return self.state() != "dead"

    @property
    def errored(self) -> bool:
        """True once the engine has ended."""
        return not self.is_running


def _refuse(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value:
            raise TypeError(f"{name} is vLLM's own and means nothing here; leave it out.")


# --- models -----------------------------------------------------------------


class ModelRegistry:
    """The supported architectures; further ones are added by plugins."""

    @staticmethod
    def get_supported_archs() -> list[str]:
        """Return the architectures of all plugins that load by default."""
        return sorted(
            found.entry.name for found in load_plan(make_plan([], None)).entries("models")
        )

    @staticmethod
    def register_model(model_arch: str, model_cls: Any) -> NoReturn:
        """Raise `ConfigError` with the way to add a model."""
        raise ConfigError(
            f"{model_arch!r} cannot be registered from a program: processes of the engine would "
            "not know it. Write a plugin with the hook engine_models "
            "(docs/extend/architectures.md) and name it: LLM(..., plugins=['+./my_model.py'])."
        )
