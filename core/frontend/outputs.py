"""Turns engine deltas into user-visible outputs: text, stop strings,
logprobs, n sequences.

Runs in the frontend. Knows requests and tokenizers; knows no scheduler and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.errors import EngineError
from core.frontend.client_request import ClientRequest
from core.frontend.text.sequence import LogprobsFormatter, OutputSequence
from core.step import EngineRequest, RequestDelta
from core.types import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
)
from core.types.outputs import merge_extra_fields

if TYPE_CHECKING:
    from core.contracts.admission import PendingRequest
    from core.contracts.text import Tokenizer
    from core.frontend.metrics import RequestMeter


class OutputProcessor:
    """Holds the open requests and turns deltas into `RequestOutput`s."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        output_fields: Callable[[Mapping[str, bytes]], Mapping[str, Any]] = lambda features: {},
        meter: RequestMeter | None = None,
        stream_interval: int = 1,
    ) -> None:
        """`output_fields` maps feature messages of a request to output fields."""
        self._tokenizer = tokenizer
        self._output_fields = output_fields
        self._meter = meter
        self._stream_interval = stream_interval
        self._by_engine_id: dict[str, tuple[ClientRequest, OutputSequence]] = {}
        self._by_request_id: dict[str, ClientRequest] = {}
        self._logprobs = LogprobsFormatter(tokenizer)

    def __len__(self) -> int:
        return len(self._by_request_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request_id

    def add(self, pending: PendingRequest, requests: Sequence[EngineRequest]) -> ClientRequest:
        """Register a request with one engine request per sequence."""
        first = requests[0]
        sampling = first.sampling
        client = ClientRequest(
            request_id=pending.request_id,
            prompt=None if pending.text is None else str(pending.text),
            prompt_token_ids=first.prompt_token_ids,
            extra_fields=dict(pending.extra_fields),
            sampling=sampling,
            sequences={
                request.request_id: OutputSequence.after_prompt(
                    first.prompt_token_ids,
                    index,
                    sampling,
                    self._tokenizer,
                    pending.answer_finder,
                )
                for index, request in enumerate(requests)
            },
            arrival_s=first.arrival_s,
            prompt_logprobs=None if sampling.prompt_logprobs is None else [None],
            num_open=len(requests),
            streams=sampling.output_kind is RequestOutputKind.DELTA,
        )
        self._by_request_id[pending.request_id] = client
        for engine_id, sequence in client.sequences.items():
            self._by_engine_id[engine_id] = client, sequence
        return client

    def engine_ids(self, request_id: str) -> list[str]:
        """Return the engine ids of a request's unfinished sequences."""
        client = self._by_request_id.get(request_id)
        if client is None:
            return []
        return [
            engine_id
            for engine_id, sequence in client.sequences.items()
            if sequence.finish_reason is None
        ]

    def drop(self, request_id: str) -> ClientRequest | None:
        """Remove and return a request; None if it is unknown."""
        client = self._by_request_id.pop(request_id, None)
        if client is not None:
            for engine_id in client.sequences:
                self._by_engine_id.pop(engine_id, None)
        return client

    def started(self, engine_ids: Sequence[str], engine: int, now_s: float) -> None:
        """Record engine and first step of engine requests, from any thread."""
        for engine_id in engine_ids:
            if found := self._by_engine_id.get(engine_id):
                client, _ = found
                client.engine = engine
                client.started_s = client.started_s or now_s

    def set_delivery_callback(
        self, request_id: str, try_deliver: Callable[[CompletionOutput], bool]
    ) -> None:
        """Offer deltas to a callback before they become outputs."""
        self._by_request_id[request_id].try_deliver = try_deliver

    def process(
        self, deltas: Sequence[RequestDelta], now_s: float
    ) -> tuple[list[RequestOutput], list[str]]:
        """Return the outputs for deltas, and the engine requests to abort
        (stop string found).

        Several deltas of one sequence, from steps faster than the reader, make one
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
            if self._append(client, sequence, delta, now_s):
                client.num_open -= 1
                if delta.finish_reason is None:
                    aborts.append(delta.request_id)
            elif newest[delta.request_id] is not delta:
                continue
            if (output := self._output(client, sequence, now_s)) is not None:
                outputs.append(output)
            if not client.num_open:
                self._finish(client, now_s)
        if self._meter is not None:
            self._meter.delivered()
        return outputs, aborts

    def _finish(self, client: ClientRequest, now_s: float) -> None:
        self.drop(client.request_id)
        if self._meter is not None:
            first = next(iter(client.sequences.values()))
            reason = "error" if client.error is not None else first.finish_reason
            self._meter.finished(client, reason or "abort", now_s)

    def _append(
        self, client: ClientRequest, sequence: OutputSequence, delta: RequestDelta, now_s: float
    ) -> bool:
        """Add one delta to its sequence; return whether it ended."""
        if client.num_cached_tokens is None:
            client.num_cached_tokens = delta.num_cached_tokens
        if delta.token_ids:
            if self._meter is not None:
                self._meter.tokens(client, sequence, len(delta.token_ids), now_s)
            sequence.last_token_s = now_s
            if client.first_token_s is None:
                client.first_token_s = now_s
        if delta.prompt_logprobs and client.prompt_logprobs is not None and sequence.index == 0:
            count = client.sampling.prompt_logprobs
            client.prompt_logprobs += [
                self._logprobs.format(position, count) for position in delta.prompt_logprobs
            ]
        if delta.error is not None:
            client.error = delta.error
        client.pooled = delta.pooled
        if delta.features:
            self._read_features(client, delta.features)
        sequence.append(delta.token_ids, delta.finish_reason, delta.stop_reason)
        if delta.logprobs:
            sequence.append_logprobs(delta.logprobs, self._logprobs)
        return sequence.finish_reason is not None

    def _read_features(self, client: ClientRequest, features: Mapping[str, bytes]) -> None:
        try:
            fields = self._output_fields(features)
            client.extra_fields = merge_extra_fields(client.extra_fields, fields)
        except EngineError as error:  # only this request fails
            client.error = str(error)

    def _output(
        self, client: ClientRequest, sequence: OutputSequence, now_s: float
    ) -> RequestOutput | None:
        """Return the output to deliver now, if there is one."""
        kind = client.sampling.output_kind
        if not client.streams and client.num_open and kind is RequestOutputKind.FINAL_ONLY:
            return None
        unfinished = sequence.finish_reason is None
        num_new = len(sequence.token_ids) - sequence.num_sent_tokens
        if unfinished and num_new < self._stream_interval:
            return None
        if client.streams:
            completions = [sequence.output(delta=True)]
            if (
                unfinished
                and client.error is None
                and client.try_deliver is not None
                and client.try_deliver(completions[0])
            ):
                return None
        else:
            completions = [each.output(delta=False) for each in client.sequences.values()]
        return RequestOutput(
            client.request_id,
            client.prompt,
            client.prompt_token_ids,
            client.prompt_logprobs,
            completions,
            client.num_open == 0,
            RequestMetrics(client.arrival_s, client.first_token_s, now_s, client.started_s),
            num_cached_tokens=client.num_cached_tokens,
            error=client.error,
            pooled=client.pooled,
            **client.extra_fields,
        )
