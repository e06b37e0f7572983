"""What features do with requests at the edge, before the engine sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from core.types.outputs import check_filled

if TYPE_CHECKING:
    from core.contracts.text import Tokenizer
    from core.step import Span
    from core.text.prompts import Prompt
    from core.types import SamplingParams
    from core.types.keywords import Unserved
    from core.types.pooling import PoolingParams


@dataclass(frozen=True, slots=True)
class Edge:
    """What an engine that has started offers admission extensions."""

    facts: Mapping[str, bytes]
    """What the model states, by feature (`WorkerInfo.facts`)."""
    read: Callable[..., Prompt]
    """Reads a prompt in any form: `read(prompt, add_special_tokens=True, max_tokens=None)`.

    Raises `InvalidRequest`.
    """
    tokenizer: Tokenizer | None
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A request before its bounds are checked.

    Extensions return it changed (`dataclasses.replace`), one after another.
    """

    request_id: str
    prompt_token_ids: list[int]
    """Checked and cut to what the request asks for when all extensions have seen it."""
    sampling: SamplingParams
    pooling: PoolingParams | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the user passed under names that extensions read: keywords, and keys of the prompt.

    None is left out.
    """
    text: str | None = None
    """What the token ids were read from; users find it in `RequestOutput.prompt`."""
    arrival_s: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    cache_domains: tuple[tuple[str, bytes], ...] = ()
    """Contents that bear on the whole request: (domain, content hash). Add to them."""
    spans: tuple[Span, ...] = ()
    """Where token ids are placeholders for contents.

    Add to them; a prompt with spans is not truncated.
    """
    features: Mapping[str, bytes] = field(default_factory=dict)
    """What other halves of features are told about the request, by feature."""
    beside: int = 0
    """Positions beside its tokens that it keeps keys and values of, in groups of cross attention.
    """
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its `RequestOutput`s: `core.types.outputs.FILLED_BY_FEATURES`."""

    def __post_init__(self) -> None:
        """Raise `TypeError` for fields of outputs that are the engine's own."""
        check_filled(self.shown)


class AdmissionExtension(Protocol):
    """What a feature does with requests at the edge. Everything is optional; what is there is used.

    Names are looked at after `attach`. A name that no extension reads is refused, with what is
    missing.
    """

    params: Sequence[str]
    """Fields of `SamplingParams` it serves."""
    keywords: Collection[str]
    """Keywords it reads of `generate`, `chat`, `encode` and the like.

    Offline, a list has a value for each prompt.
    """
    fields: Collection[str]
    """Fields it reads of requests over HTTP.

    Nothing that strangers must not say: no path, no address.
    """
    prompt_keys: Collection[str]
    """Keys it reads of prompt dicts. A dict with one of them needs neither text nor token ids."""
    unserved: Mapping[str, Unserved]
    """Names users may know that mean nothing here, and why; another extension that reads one of
    them wins.
    """

    def attach(self, edge: Edge) -> None:
        """Take what the engine offers, once, when it has started."""

    def concerns(self, draft: Draft) -> bool:
        """Say whether `prepare` is wanted: a moment's look.

        Default: something was given under a name it reads.
        """

    def prepare(self, draft: Draft) -> Draft | Awaitable[Draft]:
        """Return the request completed. Raises `InvalidRequest`; may take its time.

        A coroutine is awaited, a plain function called in a thread: other requests go on meanwhile,
        and no order among them is kept. Called once for all sequences of a request.
        """

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether such parameters concern it: a moment's look. Called from any thread."""

    def admit(self, sampling: SamplingParams, end_ids: Sequence[int]) -> SamplingParams:
        """Return the parameters requests get instead. Raises `InvalidRequest`; may take a while.
        From any thread.

        `end_ids` are the tokens that end outputs of the model.
        """

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Return fields of `RequestOutput` for what other halves told (`RequestDelta.features`), by
        feature. A moment.
        """
