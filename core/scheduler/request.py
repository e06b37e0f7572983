"""The scheduler's record of one request: its tokens, how far they are planned, and when it ends."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from core.contracts import QueuedRequest
from core.kv import Lease
from core.step import EngineRequest, RequestDelta

Rank = tuple[tuple[float, ...], int]
"""Policy key, then order of arrival: the smallest runs first, the largest is preempted first."""


class State(IntEnum):
    """Where a request is. RUNNING and STEADY hold a row; DRAINING does until its last result is in."""

    WAITING = 0
    PARKED = 1
    """An extension keeps it out of the queue until it is woken."""
    RUNNING = 2
    STEADY = 3
    """Computes exactly one token in every step (see `core.scheduler.cohort`)."""
    DRAINING = 4
    """Everything it may compute is planned; only results are missing."""
    ENDED = 5


class Request:
    """One request between `add` and its end. Extensions read `request_id`, `num_tokens`, `sampling`."""

    def __init__(self, source: EngineRequest, arrival: int, max_model_len: int, lease: Lease) -> None:
        self.source: Final = source
        self.request_id: Final = source.request_id
        self.sampling: Final = source.sampling
        self.arrival: Final = arrival
        self.lease: Final = lease
        self.prompt_len: Final = len(source.prompt_token_ids)
        self.tokens: Final = [*source.prompt_token_ids, *source.output_token_ids]
        """Every known token."""
        self.limit: Final = min(self.prompt_len + source.max_tokens, max_model_len)
        """Known tokens at which it ends."""
        eos = () if source.sampling.ignore_eos else source.eos_token_ids
        self.stops: Final = frozenset((*eos, *source.sampling.stop_token_ids))
        self.total = len(self.tokens)
        """Known tokens plus those that steps in flight will bring."""
        self.planned = 0
        """Leading tokens whose keys and values are cached or planned."""
        self.extra = 0
        """Tokens planned beyond the known ones in a step in flight; how many hold is not known yet."""
        self.last_step = 0
        """Last step that names it."""
        self.state = State.WAITING
        self.rank: Rank = ((), arrival)
        self.row = -1
        self.num_preemptions = 0
        self.num_cached = 0
        self.started = False
        self.reserved: int | None = None
        """Leading tokens that were cached when room for all known ones was reserved; None: none is reserved."""
        self.spoiled = False
        """What an extension brings is not to be trusted in the next start."""
        self.distrusted = 0
        """Last step whose tokens are not to be trusted."""
        self.prompt_done = 1
        """Next prompt position whose log-probabilities were not yet delivered; the first token has none."""
        self.slot = self.base = self.due = -1

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was generated."""
        return len(self.tokens)

    @property
    def reads_cache(self) -> bool:
        """Say whether it may start from cached keys and values."""
        return not self.sampling.skip_reading_prefix_cache and self.sampling.prompt_logprobs is None

    def facts(self) -> QueuedRequest:
        """Return what a scheduling policy may know."""
        return QueuedRequest(
            self.request_id, self.source.priority, self.source.arrival_s, self.prompt_len, self.num_preemptions
        )

    def say(self, **news: Any) -> RequestDelta:
        """Return a delta about this request."""
        return RequestDelta(request_id=self.request_id, num_cached_tokens=self.num_cached, **news)

    def take(self, new: list[int]) -> tuple[int, str | None, int | None]:
        """Append sampled tokens up to the first that ends it; return (tokens taken, finish reason, stop token)."""
        tokens, stops = self.tokens, self.stops
        earliest = self.prompt_len + self.sampling.min_tokens
        for count, token in enumerate(new, 1):
            tokens.append(token)
            if token in stops and len(tokens) > earliest:
                is_eos = token in self.source.eos_token_ids and not self.sampling.ignore_eos
                return count, "stop", None if is_eos else token
            if len(tokens) >= self.limit:
                return count, "length", None
        return len(new), None, None
