"""What crosses between scheduler, worker and client: plain data only.

The scheduler writes a `StepPlan`, the worker answers with a `StepResult` of the same step id. Both
are msgspec structs, so the same objects travel in process and, encoded as msgpack, between
processes. A row is the index of a request in the worker's persistent batch; it belongs to one
request from its `NewRow` until a later plan lists it in `ended`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from core.errors import EngineError
from core.model_spec.kv import LayerKV
from core.types import SamplingParams
from core.types.pooling import Pooled, PoolingInfo, PoolingParams

MIN_CONTENT_HASH_BYTES: Final = 16


class Span(msgspec.Struct, array_like=True, frozen=True, order=True):
    """A stretch of a prompt whose token ids are placeholders: what is cached of it depends on the
    content instead.
    """

    start: int
    length: int
    domain: str
    """What kind of content it is and how it was prepared."""
    content_hash: bytes
    """Of the content in the form the model takes; at least 16 bytes, made by a hash nobody finds
    collisions of.
    """

    def __post_init__(self) -> None:
        """Raise ValueError for a span that identifies nothing."""
        if self.start < 0 or self.length < 1 or len(self.content_hash) < MIN_CONTENT_HASH_BYTES:
            raise ValueError(
                f"span of {self.length} tokens at {self.start} with a content hash of "
                f"{len(self.content_hash)} bytes: "
                "it starts at 0 or later, has a token, and a hash of at least "
                f"{MIN_CONTENT_HASH_BYTES} bytes."
            )


class EngineRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One sequence to complete, as admitted: everything resolved, nothing left to look up."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    """Sampling noise is a function of (seed, position) and of nothing else; 64 bits."""
    max_tokens: int
    """Upper bound on generated tokens, already cut to the context length."""
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""
    """Prefix-cache entries are shared only between requests with an equal salt."""
    cache_domains: tuple[tuple[str, bytes], ...] = ()
    """Likewise for contents that bear on the whole request: (domain, content hash), an adapter's
    for example.
    """
    spans: tuple[Span, ...] = ()
    """Where the prompt's token ids are placeholders for contents."""
    output_token_ids: list[int] = []
    """Tokens already generated (and sent) by an earlier life of the request; generation goes on
    after them.
    """
    pooling: PoolingParams | None = None
    """What to make of the prompt instead of generating: the request ends with the step that ends
    the prompt.
    """
    features: dict[str, bytes] = {}
    """What features at the edge tell their other halves about it, by feature; opaque."""
    beside: int = 0
    """Positions beside its tokens that it keeps keys and values of, in groups of cross attention.
    """


class NewRow(msgspec.Struct, array_like=True, frozen=True):
    """A request that enters the batch: first admission or resumption after preemption."""

    row: int
    request_id: str
    token_ids: list[int]
    """Every known token: the prompt, then what was generated so far."""
    prompt_len: int
    sampling: SamplingParams
    seed: int
    eos_token_ids: tuple[int, ...]
    blocks: list[list[int]]
    """Block table per KV group, covering cached and planned tokens."""
    pooling: PoolingParams | None = None
    features: dict[str, bytes] = {}
    """As in the request."""
    beside: int = 0
    """As in the request; what belongs to these positions is computed in this step."""


class StepPlan(msgspec.Struct, array_like=True, frozen=True):
    """What one forward step must do: complete for new rows, columnar differences for running ones.

    `ended` is applied first, then `new`, then `blocks`. The order of the tokens in the step is that
    of `steady`, then of `rows`, to which `starts` and `counts` are parallel. Prefill, chunks and
    decode differ only in the counts. A plan holds positions, never sampled ids: a token not yet
    returned is in the worker's own token buffer. Its lists may be those of an earlier plan: nobody
    changes them.
    """

    step: int
    ended: list[int]
    """Rows whose request has left; nothing in flight names them any more when they are given to
    another.
    """
    new: list[NewRow]
    blocks: list[tuple[int, int, list[int]]]
    """(row, group, block ids to append to that table), for running rows only."""
    rows: list[int]
    starts: list[int]
    """First position to compute, per entry of `rows`."""
    counts: list[int]
    """Number of tokens to compute, per entry of `rows`."""
    samples: list[int]
    """Indices into `rows` of those that reach the end of their tokens and sample the next one."""
    payloads: dict[str, bytes] = {}
    """Opaque data of scheduler extensions for their worker half, by extension name."""
    steady: list[int] = []
    """Rows that go on where their last step ended, with one token (and its guesses), and sample."""
    guesses: list[int] = []
    """Per row that samples (`steady`, then those of `samples`), how many of its tokens are guesses
    behind the known ones;
    empty where none is. `counts` include them."""

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return len(self.steady) + sum(self.counts) + sum(self.guesses[: len(self.steady)])


class Logprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at one position: the token itself first, then the best ones, best first."""

    token_ids: list[int]
    values: list[float]
    rank: int
    """1 + number of tokens more probable than the token itself."""


class StepResult(msgspec.Struct, array_like=True, frozen=True):
    """What one step produced. `rows` are the plan's `steady` ones, then those of its `samples`."""

    step: int
    rows: list[int]
    tokens: list[int]
    """Accepted tokens, row by row."""
    logprobs: dict[int, list[Logprobs]] = {}
    """Per row, one entry per accepted token; only rows that asked."""
    prompt_logprobs: dict[int, list[Logprobs]] = {}
    """Per row, for the positions start+1 .. start+count of this step that lie inside the prompt."""
    errors: dict[int, str] = {}
    """Rows that failed alone, with the reason (plugin named where one is to blame)."""
    payloads: dict[str, list[bytes]] = {}
    """What the worker halves of features returned, by feature: one of each rank that had something
    to say, in order.
    """
    accepted: list[int] = []
    """Number of `tokens` per row; empty where it is one each."""
    pooled: dict[int, Pooled] = {}
    """Per row, what a pooling model made of its prompt; its token means nothing then."""

    def by_row(self) -> list[list[int]]:
        """Return the accepted tokens of each row.

        Raises `EngineError` if numbers and tokens disagree.
        """
        counts = self.accepted or [1] * len(self.rows)
        if len(counts) != len(self.rows) or sum(counts) != len(self.tokens):
            raise EngineError(
                f"{len(self.tokens)} tokens are not those of {len(self.rows)} rows with {counts} "
                "each."
            )
        tokens = iter(self.tokens)
        return [list(islice(tokens, count)) for count in counts]


class RequestDelta(msgspec.Struct, kw_only=True, array_like=True, frozen=True):
    """What became known about one request in one step; what the client side turns into text."""

    request_id: str
    token_ids: list[int] = []
    finish_reason: str | None = None
    """None while running; "stop", "length", "abort" or "error"."""
    stop_reason: int | str | None = None
    """The stop token id that ended it, where one did."""
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache at first admission; stated with the first token.
    """
    error: str | None = None
    pooled: Pooled | None = None
    """What a pooling model made of the prompt."""
    features: dict[str, bytes] = {}
    """What features tell their halves at the edge, by feature."""


class StepNews(msgspec.Struct, array_like=True):
    """What became known in one step: for most requests tokens and nothing else. Iterates as deltas."""

    request_ids: list[str] = []
    token_ids: list[int] = []
    """One for each of `request_ids`, or as many as `counts` says."""
    deltas: list[RequestDelta] = []
    """Of all other requests."""
    counts: list[int] = []
    """Tokens of each of `request_ids`; empty where it is one each."""

    def __len__(self) -> int:
        return len(self.request_ids) + len(self.deltas)

    def __iter__(self) -> Iterator[RequestDelta]:
        if self.counts:
            tokens = iter(self.token_ids)
            for request_id, count in zip(self.request_ids, self.counts, strict=True):
                yield RequestDelta(request_id=request_id, token_ids=list(islice(tokens, count)))
        else:
            for request_id, token in zip(self.request_ids, self.token_ids, strict=True):
                yield RequestDelta(request_id=request_id, token_ids=[token])
        yield from self.deltas


class WorkerInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What a started worker tells the engine before memory is divided."""

    layers: list[LayerKV]
    """What each caching layer needs, in layer order."""
    kv_memory_bytes: int
    """Bytes this worker may spend on its KV cache."""
    vocab_size: int
    weight_bytes: int = 0
    device: str = "cpu"
    pooling: PoolingInfo | None = None
    """What a pooling model can do; None: it generates tokens."""
    shortened_by: str = ""
    """Why the context is shorter than the model was made for; empty: it is not."""
    facts: dict[str, bytes] = {}
    """What the model states to features at the edge, by feature; opaque."""

    @classmethod
    def combine(cls, infos: Sequence[WorkerInfo], tensor: int) -> WorkerInfo:
        """Return what ranks, counted stage by stage with `tensor` in each, are together.

        Its KV memory is what all layers of one rank per stage may take, such that no rank exceeds
        its own.
        """
        layers = [layer for info in infos[::tensor] for layer in info.layers]
        return cls(
            layers=layers,
            kv_memory_bytes=min(
                int(info.kv_memory_bytes / _share(info.layers, layers)) for info in infos
            ),
            vocab_size=infos[-1].vocab_size,
            weight_bytes=sum(info.weight_bytes for info in infos),
            device=infos[0].device,
            pooling=infos[-1].pooling,
            facts=infos[0].facts,
            shortened_by=infos[0].shortened_by,
        )


def _share(own: Iterable[LayerKV], layers: Iterable[LayerKV]) -> float:
    """Return the largest part of the cache that these layers can need: of unlike layers, one slot
    serves several.
    """
    fewest: dict[int, int] = {}
    for spec, count in Counter(layer.spec for layer in layers).items():
        size = spec.page_bytes(1)
        fewest[size] = min(count, fewest.get(size, count))
    held = Counter(layer.spec.page_bytes(1) for layer in own)
    return max((min(1.0, count / fewest[size]) for size, count in held.items()), default=1.0)
