"""The messages between client, scheduler and worker: plain data only.

The scheduler writes a `StepPlan`; the worker answers with a `StepResult` of the same step id.
Both are msgspec structs: the same objects travel in process and, as msgpack, between processes.
A row is the index of a request in the worker's persistent batch. It belongs to one request from
its `NewRow` until a later plan lists it in `ended`.
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
    """A range of placeholder tokens in a prompt; prefix-cache keys cover its content instead."""

    start: int
    length: int
    domain: str
    """Kind of the content and how it was preprocessed."""
    content_hash: bytes
    """Collision-resistant hash of the preprocessed content; at least 16 bytes."""

    def __post_init__(self) -> None:
        """Raise ValueError for a span that identifies no content."""
        hash_bytes = len(self.content_hash)
        if self.start >= 0 and self.length >= 1 and hash_bytes >= MIN_CONTENT_HASH_BYTES:
            return
        raise ValueError(
            f"span: got start={self.start}, length={self.length} and a content hash of "
            f"{hash_bytes} bytes; expected start >= 0, length >= 1 and a hash of "
            f"at least {MIN_CONTENT_HASH_BYTES} bytes."
        )


class EngineRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One sequence to complete, as admitted: every parameter is resolved."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    """64-bit sampling seed; sampling noise depends on (seed, position) only."""
    max_tokens: int
    """Upper bound on generated tokens, already cut to the context length."""
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""
    """Prefix-cache salt; only requests with equal salts share entries."""
    cache_domains: tuple[tuple[str, bytes], ...] = ()
    """(domain, content hash) of contents that the whole request depends on, such as a LoRA adapter.

    Prefix-cache entries are shared only between requests with equal domains.
    """
    spans: tuple[Span, ...] = ()
    """Ranges of placeholder tokens in the prompt."""
    output_token_ids: list[int] = []
    """Tokens generated and sent before an engine restart; generation continues after them."""
    pooling: PoolingParams | None = None
    """Pooling parameters; such a request ends with the step that completes its prompt."""
    features: dict[str, bytes] = {}
    """Opaque payloads of admission extensions for their other halves, by feature."""
    num_encoder_positions: int = 0
    """Encoder positions cached in the cross-attention KV groups."""


class NewRow(msgspec.Struct, array_like=True, frozen=True):
    """A request that enters the batch: first admission or resumption after preemption."""

    row: int
    request_id: str
    token_ids: list[int]
    """All known tokens: the prompt, then the generated ones."""
    prompt_len: int
    sampling: SamplingParams
    seed: int
    eos_token_ids: tuple[int, ...]
    blocks: list[list[int]]
    """Block table per KV group, covering cached and planned tokens."""
    pooling: PoolingParams | None = None
    features: dict[str, bytes] = {}
    """Payloads of admission extensions, as in `EngineRequest`."""
    num_encoder_positions: int = 0
    """Encoder positions; this step computes their keys and values."""


class StepPlan(msgspec.Struct, array_like=True, frozen=True):
    """One forward step: complete for new rows, columnar differences for running ones.

    The worker applies `ended` first, then `new`, then `blocks`. The step's tokens are those of
    `decode_rows`, then those of `rows`; `starts` and `counts` are parallel to `rows`. Prefill,
    prefill chunks and decode differ only in their counts. A plan holds positions, never sampled
    ids: the worker's token buffer has the tokens that are not yet returned. Several plans may
    share one list, so plans are never modified.
    """

    step: int
    ended: list[int]
    """Rows that their request has left; reassigned when no step in flight uses them."""
    new: list[NewRow]
    blocks: list[tuple[int, int, list[int]]]
    """(row, KV group, block ids to append to that block table), for running rows only."""
    rows: list[int]
    starts: list[int]
    """First position to compute, per entry of `rows`."""
    counts: list[int]
    """Number of tokens to compute, per entry of `rows`."""
    samples: list[int]
    """Indices into `rows` of rows that reach the end of their tokens and sample the next one."""
    payloads: dict[str, bytes] = {}
    """Opaque data of scheduler extensions for their worker halves, by extension name."""
    decode_rows: list[int] = []
    """Rows that compute one token, and its draft tokens, after their last step, and sample."""
    num_draft_tokens: list[int] = []
    """Draft tokens of each sampling row: `decode_rows`, then those of `samples`.

    Empty without draft tokens. `counts` include them.
    """

    @property
    def num_tokens(self) -> int:
        """Tokens to compute in this step."""
        num_decodes = len(self.decode_rows)
        decode_drafts = sum(self.num_draft_tokens[:num_decodes])
        return num_decodes + decode_drafts + sum(self.counts)


class Logprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at one position: the token itself, then the top tokens in rank order."""

    token_ids: list[int]
    values: list[float]
    rank: int
    """1 + number of tokens more probable than the token itself."""


class StepResult(msgspec.Struct, array_like=True, frozen=True):
    """The output of one step; `rows` are the plan's `decode_rows`, then those of `samples`."""

    step: int
    rows: list[int]
    tokens: list[int]
    """Accepted tokens, row by row."""
    logprobs: dict[int, list[Logprobs]] = {}
    """One entry per accepted token, by row; only rows that requested log-probabilities."""
    prompt_logprobs: dict[int, list[Logprobs]] = {}
    """Entries for the prompt positions start+1 .. start+count of this step, by row."""
    errors: dict[int, str] = {}
    """Failure reason by row; a failing plugin is named."""
    payloads: dict[str, list[bytes]] = {}
    """Payloads of worker halves by feature, in rank order; ranks without a payload are absent."""
    accepted: list[int] = []
    """Number of accepted tokens per row; empty if each row has one."""
    pooled: dict[int, Pooled] = {}
    """Pooling output by row; the row's token is then ignored."""

    def by_row(self) -> list[list[int]]:
        """Return the accepted tokens of each row.

        Raises `EngineError` if `accepted` and `tokens` disagree.
        """
        counts = self.accepted or [1] * len(self.rows)
        if len(counts) != len(self.rows) or sum(counts) != len(self.tokens):
            raise EngineError(
                f"step result: got {len(self.tokens)} tokens; "
                f"expected the sum of {counts} for {len(self.rows)} rows."
            )
        tokens = iter(self.tokens)
        return [list(islice(tokens, count)) for count in counts]


class RequestDelta(msgspec.Struct, kw_only=True, array_like=True, frozen=True):
    """New tokens and state of one request after one step; the client turns it into text."""

    request_id: str
    token_ids: list[int] = []
    finish_reason: str | None = None
    """None while the request runs; then "stop", "length", "abort" or "error"."""
    stop_reason: int | str | None = None
    """Stop token id that ended the request."""
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at first admission; sent with the first token."""
    error: str | None = None
    pooled: Pooled | None = None
    """Output of a pooling model."""
    features: dict[str, bytes] = {}
    """Payloads for the admission halves of features, by feature."""


class StepOutputs(msgspec.Struct, array_like=True):
    """The outputs of one step. Iterates as deltas; requests with tokens only are in columns."""

    request_ids: list[str] = []
    token_ids: list[int] = []
    """Tokens of `request_ids`: one each, or `counts` each."""
    deltas: list[RequestDelta] = []
    """Deltas of all other requests."""
    counts: list[int] = []
    """Number of tokens per entry of `request_ids`; empty if each has one."""

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


class CallAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """One engine's answer to a call of a feature, or of the engine itself."""

    scheduler: bytes | None = None
    """Answer of the scheduler half; None: it has none."""
    ranks: list[bytes] = []
    """Answers of the worker halves, one per rank that has one."""
    engine: int = 0
    """Rank of the engine among those of its client."""
    error: str = ""
    """Reason without an answer, if other engines have answered."""
    died: bool = False
    """Whether the engine died before it answered; its successor has an empty cache."""

    @property
    def all(self) -> list[bytes]:
        """All answers, the scheduler half's first."""
        return self.ranks if self.scheduler is None else [self.scheduler, *self.ranks]


class WorkerInfo(msgspec.Struct, kw_only=True, frozen=True):
    """A started worker's model and memory facts, from which the engine plans the KV cache."""

    layers: list[LayerKV]
    """KV cache needs of each caching layer, in layer order."""
    kv_memory_bytes: int
    """Bytes this worker may spend on its KV cache."""
    vocab_size: int
    weight_bytes: int = 0
    device: str = "cpu"
    pooling: PoolingInfo | None = None
    """Tasks of a pooling model; None for a model that generates tokens."""
    shortened_by: str = ""
    """Reason why the context is shorter than the model's own; empty if it is not."""
    facts: dict[str, bytes] = {}
    """Opaque facts of the model for admission extensions, by feature."""

    @classmethod
    def combine(cls, infos: Sequence[WorkerInfo], tensor: int) -> WorkerInfo:
        """Return the info of all ranks together; `infos` go stage by stage, `tensor` ranks each.

        Its KV memory is that of all layers on one rank per stage, such that every rank fits.
        """
        layers = [layer for info in infos[::tensor] for layer in info.layers]
        kv_memory = (int(i.kv_memory_bytes / _cache_share(i.layers, layers)) for i in infos)
        return cls(
            layers=layers,
            kv_memory_bytes=min(kv_memory),
            vocab_size=infos[-1].vocab_size,
            weight_bytes=sum(info.weight_bytes for info in infos),
            device=infos[0].device,
            pooling=infos[-1].pooling,
            facts=infos[0].facts,
            shortened_by=infos[0].shortened_by,
        )


def _cache_share(own: Iterable[LayerKV], layers: Iterable[LayerKV]) -> float:
    """Return the largest share of the KV cache that `own` layers can need.

    One slot serves several layers with different specs but equal page sizes.
    """
    fewest: dict[int, int] = {}
    for spec, count in Counter(layer.spec for layer in layers).items():
        size = spec.page_bytes(1)
        fewest[size] = min(count, fewest.get(size, count))
    held = Counter(layer.spec.page_bytes(1) for layer in own)
    shares = (min(1.0, count / fewest[size]) for size, count in held.items())
    return max(shares, default=1.0)
