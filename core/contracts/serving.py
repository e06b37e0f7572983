"""The engine as servers and routes see it, and commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import argparse

    from core.config import EngineConfig
    from core.contracts.clients import State
    from core.contracts.models import ModelSource
    from core.contracts.registry import Registry
    from core.contracts.telemetry import MetricRecorder
    from core.contracts.text import ChatRenderer, Tokenizer
    from core.step import CallAnswer
    from core.types import CompletionOutput, RequestOutput, SamplingParams
    from core.types.plugin_params import KnownNames
    from core.types.pooling import (
        PoolingInfo,
        PoolingOutput,
        PoolingParams,
        PoolingRequestOutput,
    )


class ServedEngine(Protocol):
    """The engine as servers and routes see it: `AsyncLLM`, or a fake in
    tests.

    All coroutines run in one event loop.
    """

    config: EngineConfig
    """The configuration in force, with every automatic value resolved."""
    registry: Registry
    """The loaded plugins."""
    source: ModelSource
    """The model that is served."""
    tokenizer: Tokenizer | None
    """The model's tokenizer; None with `skip_tokenizer_init`."""
    renderer: ChatRenderer | None
    """The chat renderer; None for a model without one."""
    max_model_len: int
    """Maximum length of prompt plus output, in tokens."""
    pooling: PoolingInfo | None
    """Pooling tasks of the model; None for a model that generates."""
    vocab_size: int
    """Vocabulary size; token ids are below it."""
    fields: KnownNames
    """Request fields that features read, in addition to the route's own
    fields.
    """
    sinks: MetricRecorder
    """The metric sinks."""
    served_names: Sequence[str]
    """Names of the model in requests; answers carry the first one."""
    sampling_defaults: Mapping[str, Any]
    """Sampling parameters of requests that do not set them."""

    async def tokenize(
        self, text: str, add_special_tokens: bool = True, **reading: Any
    ) -> list[int]:
        """Return the token ids of a text."""

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> tuple[str, list[int]]:
        """Return the prompt of a conversation as text and token ids."""

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        client: str = "",
        **keywords: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the outputs of one request as they arrive; closing the iterator aborts it."""

    def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        prompt_name: str | None = None,
        **keywords: Any,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """Yield the one output of a pooling request."""

    def set_delivery_callback(
        self, request_id: str, callback: Callable[[CompletionOutput], bool]
    ) -> None:
        """Deliver deltas of a streamed request to `callback` while its reader
        waits.

        The callback returns True for a delta that it consumed; the reader gets all
        others.
        """

    def open_ids(self) -> list[str]:
        """Return the ids of unfinished requests."""

    async def abort(self, request_id: str) -> None:
        """Abort a request; its reader gets a last output with finish reason "abort"."""

    def state(self) -> State:
        """Return the engine's state: "ready" while it computes requests."""

    def check_health(self) -> None:
        """Raise `EngineDead` when the engine can serve no more requests."""

    def health(self) -> dict[str, Any]:
        """Return the body of `/health`."""

    async def call(self, name: str, data: bytes = b"") -> list[CallAnswer]:
        """Call a feature (`feature.verb`); return each engine's answer."""

    async def reset_prefix_cache(self, **options: Any) -> bool:
        """Clear the prefix cache; return False, without an effect, while blocks are in use."""

    def shutdown(self) -> None:
        """Stop the engine; open requests end with `EngineDead`. May be called twice."""


class Command(Protocol):
    """A subcommand of `engine`. Constructed without arguments.

    Optional: `examines_plugins = True` on a command without engine options that must also run when
    plugins are broken. Builtins may set `runs_before_plugins`, and `needs_no_selection` to run with
    `--plugins none`.
    """

    help: str
    takes_engine_options: bool
    """True: its parser gets the options of engine and plugins, and a config
    is built.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, context: Any) -> int:
        """Run and return the exit status; `context` is a `core.cli.CommandContext`."""
