"""What requests get, as numbers for the metric sinks. Runs where outputs are made, on the client's side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.contracts import RequestStats, TokenStats

if TYPE_CHECKING:
    from core.engine.output import ClientRequest, Sequenced
    from core.engine.sinks import Sinks


class Meter:
    """Counts what one delivery brings, and tells of each request when it has ended."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._start()

    def _start(self) -> None:
        self._generated = self._prompt = self._cached = 0
        self._first: list[float] = []
        self._between: list[float] = []

    def tokens(self, client: ClientRequest, sequence: Sequenced, count: int, now_s: float) -> None:
        """Count the tokens of one sequence; called before they are noted in either."""
        self._generated += count
        if sequence.last_token_s is not None:
            self._between.append(now_s - sequence.last_token_s)
        elif client.first_token_s is None:
            self._first.append(now_s - client.arrival_s)
            self._prompt += len(client.prompt_token_ids)
            self._cached += client.num_cached_tokens or 0

    def delivered(self) -> None:
        """Hand on what was counted since the last call."""
        if self._generated:
            self._sinks.tokens(TokenStats(self._generated, self._prompt, self._cached, self._first, self._between))
            self._start()

    def ended(self, client: ClientRequest, reason: str, now_s: float) -> None:
        """Hand on the numbers of a request that has ended."""
        arrival_s, sizes = client.arrival_s, [len(s.token_ids) for s in client.sequences.values()]
        first_s, started_s = client.first_token_s, client.started_s
        stats = RequestStats(
            finish_reason=reason,
            prompt_tokens=len(client.prompt_token_ids),
            generated_tokens=sum(sizes),
            e2e_s=now_s - arrival_s,
            ttft_s=None if first_s is None else first_s - arrival_s,
            queue_s=None if started_s is None else started_s - arrival_s,
            longest_output=max(sizes),
            cached_tokens=client.num_cached_tokens or 0,
            n=client.sampling.n,
            max_tokens=client.sampling.max_tokens,
            request_id=client.request_id,
        )
        self._sinks.request(stats)
