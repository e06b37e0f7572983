"""From what the engine found out to what the user sees: text, stop texts, log-probabilities, n sequences.

Runs on the client's side. Knows requests and tokenizers; knows no scheduler and no model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.engine.detokenizer import Detokenizer, StopTexts
from core.pooling_types import Pooled
from core.prompts import Prompt
from core.step import EngineRequest, Logprobs, RequestDelta
from core.types import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)

if TYPE_CHECKING:
    from core.contracts import Tokenizer
    from core.engine.sinks import Meter


@dataclass(slots=True)
class Sequenced:
    """One of the n sequences of a request, as it grows."""

    index: int
    detokenizer: Detokenizer | None
    stops: StopTexts
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    last_token_s: float | None = None
    num_sent_tokens: int = 0
    num_sent_chars: int = 0

    @property
    def ended(self) -> bool:
        """Say whether nothing more comes."""
        return self.finish_reason is not None


@dataclass(slots=True)
class ClientRequest:
    """A request as its user knows it: one prompt, n sequences."""

    request_id: str
    prompt: Prompt
    prompt_token_ids: list[int]
    """What of it was left by truncation."""
    encoder_ids: list[int] | None
    sampling: SamplingParams
    sequences: dict[str, Sequenced]
    """By engine request id."""
    arrival_s: float
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    started_s: float | None = None
    """When a step first computed it."""
    first_token_s: float | None = None
    error: str | None = None
    pooled: Pooled | None = None
    num_open: int = 0

    @property
    def finished(self) -> bool:
        """Say whether every sequence has ended."""
        return self.num_open == 0


class OutputProcessor:
    """Keeps the open requests and turns deltas into `RequestOutput`s."""

    def __init__(self, tokenizer: Tokenizer | None, meter: Meter | None = None, stream_interval: int = 1) -> None:
        self._tokenizer = tokenizer
        self._meter = meter
        self._stream_interval = stream_interval
        self._by_engine_id: dict[str, ClientRequest] = {}
        self._by_request_id: dict[str, ClientRequest] = {}
        self._token_texts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._by_request_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request_id

    def add(self, request_id: str, prompt: Prompt, requests: Sequence[EngineRequest]) -> ClientRequest:
        """Start to follow a request that was fanned out to one engine request per sequence."""
        first, sampling = requests[0], requests[0].sampling
        client = ClientRequest(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=first.prompt_token_ids,
            encoder_ids=None if first.encoder is None else first.encoder.token_ids,
            sampling=sampling,
            sequences={r.request_id: self._sequence(i, r) for i, r in enumerate(requests)},
            arrival_s=first.arrival_s,
            prompt_logprobs=None if sampling.prompt_logprobs is None else [None],
            num_open=len(requests),
        )
        self._by_request_id[request_id] = client
        for request in requests:
            self._by_engine_id[request.request_id] = client
        return client

    def _sequence(self, index: int, request: EngineRequest) -> Sequenced:
        sampling, detokenizer = request.sampling, None
        if sampling.detokenize and self._tokenizer is not None:
            detokenizer = Detokenizer(self._tokenizer, request.prompt_token_ids, sampling.skip_special_tokens)
        return Sequenced(
            index=index,
            detokenizer=detokenizer,
            stops=StopTexts(sampling.stop, sampling.include_stop_str_in_output),
            logprobs=None if sampling.logprobs is None else [],
            cumulative_logprob=None if sampling.logprobs is None else 0.0,
        )

    def engine_ids(self, request_id: str) -> list[str]:
        """Return the ids of the engine requests of one client request, open ones only; empty if unknown."""
        client = self._by_request_id.get(request_id)
        if client is None:
            return []
        return [rid for rid, sequence in client.sequences.items() if sequence.finish_reason is None]

    def drop(self, request_id: str) -> ClientRequest | None:
        """Forget a request whatever its state; return it, or None if it is unknown."""
        client = self._by_request_id.pop(request_id, None)
        if client is not None:
            for rid in client.sequences:
                self._by_engine_id.pop(rid, None)
        return client

    def started(self, engine_ids: Sequence[str], now_s: float) -> None:
        """Note that a step computes these engine requests for the first time. Safe to call from another thread."""
        for engine_id in engine_ids:
            client = self._by_engine_id.get(engine_id)
            if client is not None and client.started_s is None:
                client.started_s = now_s

    def process(self, deltas: Iterable[RequestDelta], now_s: float) -> tuple[list[RequestOutput], list[str]]:
        """Take deltas; return the outputs to show and the engine requests to abort (a stop text was found)."""
        outputs: list[RequestOutput] = []
        aborts: list[str] = []
        for delta in deltas:
            client = self._by_engine_id.get(delta.request_id)
            if client is None:
                continue
            sequence = client.sequences[delta.request_id]
            if sequence.ended:
                continue
            if self._grow(client, sequence, delta, now_s):
                client.num_open -= 1
                if delta.finish_reason is None:
                    aborts.append(delta.request_id)
            output = self._show(client, sequence, now_s)
            if output is not None:
                outputs.append(output)
            if client.finished:
                self.drop(client.request_id)
                if self._meter is not None:
                    first = next(iter(client.sequences.values()))
                    reason = "error" if client.error is not None else first.finish_reason
                    self._meter.ended(client, reason or "abort", now_s)
        if self._meter is not None:
            self._meter.delivered()
        return outputs, aborts

    def _grow(self, client: ClientRequest, sequence: Sequenced, delta: RequestDelta, now_s: float) -> bool:
        """Add one delta to one sequence; return whether the delta or a stop text ended it."""
        if client.num_cached_tokens is None:
            client.num_cached_tokens = delta.num_cached_tokens
        if delta.token_ids:
            if self._meter is not None:
                self._meter.tokens(client, sequence, len(delta.token_ids), now_s)
            sequence.last_token_s = now_s
            if client.first_token_s is None:
                client.first_token_s = now_s
        if delta.prompt_logprobs and client.prompt_logprobs is not None and sequence.index == 0:
            client.prompt_logprobs += [
                self._position(p, client.sampling.prompt_logprobs) for p in delta.prompt_logprobs
            ]
        if delta.error is not None:
            client.error = delta.error
        client.pooled = delta.pooled
        sequence.token_ids += delta.token_ids
        stop = self._grow_text(client.sampling, sequence, delta)
        self._grow_logprobs(client.sampling, sequence, delta)
        if stop is not None:
            sequence.finish_reason, sequence.stop_reason = "stop", stop
        elif delta.finish_reason is not None:
            sequence.finish_reason, sequence.stop_reason = delta.finish_reason, delta.stop_reason
        return sequence.ended

    def _grow_text(self, sampling: SamplingParams, sequence: Sequenced, delta: RequestDelta) -> str | None:
        if sequence.detokenizer is None:
            return None
        tokens = delta.token_ids
        if delta.finish_reason == "stop" and tokens and not sampling.include_stop_str_in_output:
            tokens = tokens[:-1]  # the token that ended the output is no text, special or not
        text = sequence.detokenizer.append(tokens)
        if delta.finish_reason is not None:
            text += sequence.detokenizer.flush()
        return sequence.stops.append(text, may_stop=len(sequence.token_ids) > sampling.min_tokens)

    def _grow_logprobs(self, sampling: SamplingParams, sequence: Sequenced, delta: RequestDelta) -> None:
        if sequence.logprobs is None or sequence.cumulative_logprob is None or delta.logprobs is None:
            return
        for position in delta.logprobs:
            sequence.cumulative_logprob += position.values[0]
            sequence.logprobs.append(self._position(position, sampling.logprobs))

    def _position(self, position: Logprobs, wanted: int | None) -> PositionLogprobs:
        """Return the token itself and the `wanted` best ones, with their texts."""
        count = len(position.token_ids) if wanted == -1 else 1 + (wanted or 0)
        out: PositionLogprobs = {}
        for i, token in enumerate(position.token_ids[:count]):
            if token not in out:
                out[token] = Logprob(position.values[i], position.rank if i == 0 else i, self._token_text(token))
        return out

    def _token_text(self, token: int) -> str | None:
        if self._tokenizer is not None and token not in self._token_texts:
            self._token_texts[token] = self._tokenizer.decode([token])
        return self._token_texts.get(token)

    def _show(self, client: ClientRequest, sequence: Sequenced, now_s: float) -> RequestOutput | None:
        """Return the output to show now, or None while there is nothing new enough."""
        kind = client.sampling.output_kind
        if kind is RequestOutputKind.FINAL_ONLY and not client.finished:
            return None
        if not sequence.ended and len(sequence.token_ids) - sequence.num_sent_tokens < self._stream_interval:
            return None
        delta = kind is RequestOutputKind.DELTA
        shown = [sequence] if delta else list(client.sequences.values())
        return RequestOutput(
            request_id=client.request_id,
            prompt=client.prompt.text,
            prompt_token_ids=client.prompt_token_ids,
            prompt_logprobs=client.prompt_logprobs,
            outputs=[_completion(s, delta) for s in shown],
            finished=client.finished,
            metrics=RequestMetrics(client.arrival_s, client.first_token_s, now_s),
            encoder_prompt=client.prompt.encoder_text,
            encoder_prompt_token_ids=client.encoder_ids,
            num_cached_tokens=client.num_cached_tokens,
            error=client.error,
            pooled=client.pooled,
        )


def _completion(sequence: Sequenced, delta: bool) -> CompletionOutput:
    """Return the sequence so far, or what came since the last call."""
    text, tokens, logprobs = sequence.stops.text, sequence.token_ids, sequence.logprobs
    spans = [] if sequence.detokenizer is None else sequence.detokenizer.spans
    if sequence.finish_reason is None and sequence.stops.held_back:
        end = len(text) - sequence.stops.held_back
        around = bisect_left(spans, (end,)) - 1
        if around >= 0 and end < spans[around][1]:  # half a special token would pass for text
            end = spans[around][0]
        text = text[: max(end, sequence.num_sent_chars)]
    start_char, start_token = (sequence.num_sent_chars, sequence.num_sent_tokens) if delta else (0, 0)
    sequence.num_sent_chars, sequence.num_sent_tokens = len(text), len(tokens)
    first = bisect_left(spans, (start_char,))
    return CompletionOutput(
        index=sequence.index,
        text=text[start_char:],
        token_ids=tokens[start_token:],
        cumulative_logprob=sequence.cumulative_logprob,
        logprobs=None if logprobs is None else logprobs[start_token:],
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        num_tokens=len(tokens),
        special_spans=[(a - start_char, b - start_char) for a, b in spans[first:] if b <= len(text)],
    )
