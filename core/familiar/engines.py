"""`LLMEngine` and `AsyncLLMEngine`: the engine one step at a time, and the one that serves, made of
`EngineArgs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from core.engine.async_llm import AsyncLLM
from core.familiar.llm import LLM

if TYPE_CHECKING:
    from core.contracts import Tokenizer
    from core.familiar.args import Args

_NEUTRAL = "is vLLM's own and means nothing here; leave it out."


class LLMEngine(LLM):
    """Add requests, then call `step` until none is unfinished."""

    @classmethod
    def from_engine_args(cls, engine_args: Args, **options: Any) -> Self:
        """Start an engine. Further keywords may be None only."""
        _refuse(options)
        return cls(**keywords(engine_args))

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests early; unknown ids are passed over."""
        self.abort(request_id)

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests run or wait."""
        return len(self._outputs)


class AsyncLLMEngine(AsyncLLM):
    """`AsyncLLM` under its older name."""

    @classmethod
    def from_engine_args(cls, engine_args: Args, **options: Any) -> Self:
        """Start an engine in a process of its own. Further keywords may be None only."""
        _refuse(options)
        return cls(**keywords(engine_args))

    async def get_tokenizer(self) -> Tokenizer | None:
        """Return the model's tokenizer."""
        return self.tokenizer

    @property
    def is_running(self) -> bool:
        """Say whether it takes requests, now or when it is back."""
        return self.state() != "dead"

    @property
    def errored(self) -> bool:
        """Say whether it has ended."""
        return not self.is_running


def keywords(engine_args: Args) -> dict[str, Any]:
    """Return the keywords of `LLM` that settings are: those that say something other than the
    default.
    """
    return {
        item.name: value
        for item in dataclasses.fields(engine_args)  # type: ignore[arg-type]  # made at run time
        if (value := getattr(engine_args, item.name)) != _default(item)
    }


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _refuse(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value:
            raise TypeError(f"{name} {_NEUTRAL}")
