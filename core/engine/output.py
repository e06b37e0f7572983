"""From what the engine found out to what the user sees: text, stop texts, log-probabilities, n
sequences.

Runs on the client's side. Knows requests and tokenizers; knows no scheduler and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.engine.followed import ClientRequest
from core.errors import EngineError
from core.step import EngineRequest, RequestDelta
from core.text.sequence import GrowingSequence, SpelledLogprobs
from core.types import CompletionOutput, RequestMetrics, RequestOutput, RequestOutputKind, joined

if TYPE_CHECKING:
    from core.contracts import Draft, Tokenizer
    from core.engine.sinks import Meter


class OutputProcessor:
    """Keeps the open requests and turns deltas into `RequestOutput`s."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        finished: Callable[[Mapping[str, bytes]], Mapping[str, Any]] = lambda features: {},
        meter: Meter | None = None,
        stream_interval: int = 1,
    ) -> None:
        """`finished` reads what features told of a request and returns fields of its outputs."""
        self._tokenizer = tokenizer
        self._finished = finished
        self._meter = meter
        self._stream_interval = stream_interval
        self._by_engine_id: dict[str, tuple[ClientRequest, GrowingSequence]] = {}
        self._by_request_id: dict[str, ClientRequest] = {}
        self._spelled = SpelledLogprobs(tokenizer)

    def __len__(self) -> int:
        return len(self._by_request_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request_id

    def add(self, draft: Draft, requests: Sequence[EngineRequest]) -> ClientRequest:
        """Start to follow a request that was fanned out to one engine request per sequence."""
        first = requests[0]
        sampling = requests[0].sampling
        client = ClientRequest(
            request_id=draft.request_id,
            prompt=draft.text,
            prompt_token_ids=first.prompt_token_ids,
            shown=dict(draft.shown),
            sampling=sampling,
            sequences={
                request.request_id: GrowingSequence.behind(
                    first.prompt_token_ids, i, sampling, self._tokenizer
                )
                for i, request in enumerate(requests)
            },
            arrival_s=first.arrival_s,
            prompt_logprobs=None if sampling.prompt_logprobs is None else [None],
            num_open=len(requests),
            streams=sampling.output_kind is RequestOutputKind.DELTA,
        )
        self._by_request_id[draft.request_id] = client
        for engine_id, sequence in client.sequences.items():
            self._by_engine_id[engine_id] = client, sequence
        return client

    def engine_ids(self, request_id: str) -> list[str]:
        """Return the ids of the engine requests of one client request, open ones only; empty if
        unknown.
        """
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
        """Note that a step computes these engine requests for the first time.

        Safe to call from another thread.
        """
        for engine_id in engine_ids:
            found = self._by_engine_id.get(engine_id)
            if found is not None and found[0].started_s is None:
                found[0].started_s = now_s

    def offer_to(self, request_id: str, offer: Callable[[CompletionOutput], bool]) -> None:
        """Offer what is new of a request that streams before it becomes an output."""
        self._by_request_id[request_id].offer = offer

    def process(
        self, deltas: Sequence[RequestDelta], now_s: float
    ) -> tuple[list[RequestOutput], list[str]]:
        """Take deltas; return the outputs to show and the engine requests to abort (a stop text was
        found).

        Several deltas of a sequence, which come where steps are quicker than their reader, make one
        output.
        """
        outputs: list[RequestOutput] = []
        aborts: list[str] = []
        newest = {delta.request_id: delta for delta in deltas}
        for delta in deltas:
            found = self._by_engine_id.get(delta.request_id)
            if found is None or found[1].finish_reason is not None:
                continue
            client, sequence = found
            if self._grow(client, sequence, delta, now_s):
                client.num_open -= 1
                if delta.finish_reason is None:
                    aborts.append(delta.request_id)
            elif newest[delta.request_id] is not delta:
                continue
            if (output := self._show(client, sequence, now_s)) is not None:
                outputs.append(output)
            if not client.num_open:
                self.drop(client.request_id)
                if self._meter is not None:
                    first = next(iter(client.sequences.values()))
                    reason = "error" if client.error is not None else first.finish_reason
                    self._meter.ended(client, reason or "abort", now_s)
        if self._meter is not None:
            self._meter.delivered()
        return outputs, aborts

    def _grow(
        self, client: ClientRequest, sequence: GrowingSequence, delta: RequestDelta, now_s: float
    ) -> bool:
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
                self._spelled.at(p, client.sampling.prompt_logprobs) for p in delta.prompt_logprobs
            ]
        if delta.error is not None:
            client.error = delta.error
        client.pooled = delta.pooled
        if delta.features:
            self._learn(client, delta.features)
        sequence.grow(delta.token_ids, delta.finish_reason, delta.stop_reason)
        if delta.logprobs:
            sequence.grow_logprobs(delta.logprobs, self._spelled)
        return sequence.finish_reason is not None

    def _learn(self, client: ClientRequest, features: Mapping[str, bytes]) -> None:
        try:
            client.shown = joined(client.shown, self._finished(features))
        except EngineError as error:  # it costs this request its outcome, and no other
            client.error = str(error)

    def _show(
        self, client: ClientRequest, sequence: GrowingSequence, now_s: float
    ) -> RequestOutput | None:
        """Return the output to show now, or None while there is nothing new enough."""
        if (
            not client.streams
            and client.num_open
            and client.sampling.output_kind is RequestOutputKind.FINAL_ONLY
        ):
            return None
        goes_on = sequence.finish_reason is None
        if goes_on and len(sequence.token_ids) - sequence.num_sent_tokens < self._stream_interval:
            return None
        if client.streams:
            shown = [sequence.show(delta=True)]
            if (
                goes_on
                and client.error is None
                and client.offer is not None
                and client.offer(shown[0])
            ):
                return None
        else:
            shown = [each.show(delta=False) for each in client.sequences.values()]
        return RequestOutput(
            client.request_id,
            client.prompt,
            client.prompt_token_ids,
            client.prompt_logprobs,
            shown,
            client.num_open == 0,
            RequestMetrics(client.arrival_s, client.first_token_s, now_s),
            num_cached_tokens=client.num_cached_tokens,
            error=client.error,
            pooled=client.pooled,
            **client.shown,
        )
