"""Features in the frontend: admission extensions, and extra methods of `LLM`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from core.types.outputs import check_extra_fields

if TYPE_CHECKING:
    from core.contracts.registry import Registry
    from core.contracts.text import AnswerFinder, Tokenizer
    from core.step import Span
    from core.types import SamplingParams
    from core.types.plugin_params import Unsupported
    from core.types.pooling import PoolingParams
    from core.types.prompts import Prompt

Messages = Sequence[Mapping[str, Any]]
ReadMessages = tuple[Messages, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What a started engine gives to its admission extensions."""

    facts: Mapping[str, bytes]
    """Facts that the model reports, by feature (`WorkerInfo.facts`)."""
    read: Callable[..., Prompt]
    """Reads a prompt in any form: `read(prompt, add_special_tokens=True,
    max_tokens=None)`.

    Raises `InvalidRequest`.
    """
    tokenizer: Tokenizer | None
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request before its bounds are checked. Each extension returns a changed copy of it."""

    request_id: str
    prompt_token_ids: list[int]
    """Prompt tokens; validated and truncated after all extensions
    have run.
    """
    sampling: SamplingParams
    pooling: PoolingParams | None = None
    plugin_fields: Mapping[str, Any] = field(default_factory=dict)
    """Keywords and prompt keys that extensions read, without those set to
    None.
    """
    text: str | None = None
    """Prompt text; becomes `RequestOutput.prompt`."""
    arrival_s: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    cache_domains: tuple[tuple[str, bytes], ...] = ()
    """Contents that affect the whole request: (domain, content hash). Extensions add to them."""
    spans: tuple[Span, ...] = ()
    """Positions of placeholder tokens. Extensions add to them.

    A prompt with spans is not truncated.
    """
    features: Mapping[str, bytes] = field(default_factory=dict)
    """Messages to the scheduler and worker halves of features, by feature."""
    num_encoder_positions: int = 0
    """Number of encoder positions that it caches in cross-attention
    groups.
    """
    answer_finder: Callable[[], AnswerFinder] | None = None
    """Makes one per sequence: stop strings count in its answer.

    Default: they count everywhere.
    """
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of its `RequestOutput`s:
    `core.types.outputs.EXTRA_FIELDS`.
    """

    def __post_init__(self) -> None:
        """Raise `TypeError` for output fields that extensions must not set."""
        check_extra_fields(self.extra_fields)


class AdmissionExtension(Protocol):
    """The admission half of a feature. Every member is optional; those
    present are used.

    The name lists are read after `attach`. A name that no extension reads is refused.
    """

    params: Sequence[str]
    """Fields of `SamplingParams` that it serves."""
    keywords: Collection[str]
    """Keywords of `generate`, `chat` and `encode` that it reads.

    Offline, a list holds one for each prompt.
    """
    fields: Collection[str]
    """Fields of HTTP requests that it reads, from untrusted clients:
    no paths, no addresses."""
    prompt_keys: Collection[str]
    """Keys of prompt dicts that it reads. A dict with one of them needs no text and no ids."""
    unsupported: Mapping[str, Unsupported]
    """Known names without an effect here, with the reason; another extension
    may read them.
    """

    def attach(self, context: AdmissionContext) -> None:
        """Receive the engine's facts once it has started."""

    def applies_to(self, request: PendingRequest) -> bool:
        """Return whether `prepare` must run. Must be quick.

        Default: the request sets a name that the extension reads.
        """

    def read_messages(self, messages: Messages) -> ReadMessages:
        """Return a conversation to render, and prompt keys."""

    def prepare(self, request: PendingRequest) -> PendingRequest | Awaitable[PendingRequest]:
        """Return the request with the feature's part filled in. Raises `InvalidRequest`.

        May be slow: a coroutine is awaited, a plain function runs in a thread. Requests are
        prepared concurrently and in no fixed order. Called once for all sequences of a request.
        """

    def affects(self, sampling: SamplingParams) -> bool:
        """Return whether `admit` must run for these parameters. Must be quick. Any thread."""

    def admit(self, sampling: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
        """Return the parameters to use instead. Raises `InvalidRequest`; may be slow. Any thread.

        `end_ids` are the end-of-sequence tokens of the model.
        """

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return output fields for messages of other halves (`RequestDelta.features`).

        Must be quick.
        """

    def close(self) -> None:
        """Release what `attach` opened."""


def llm_methods(registry: Registry) -> dict[str, Callable[..., Any]]:
    """Return the methods that features add to `LLM`, by name; each gets the
    `LLM` first.
    """
    made: dict[str, Callable[..., Any]] = registry.shared("methods of LLM", dict)
    return made
