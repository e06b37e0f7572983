"""The scheduler's record of one request, and the queue of waiting
requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final

from core.contracts.scheduling import QueuedRequest
from core.kv import Lease
from core.kv.lease import KVTrust
from core.kv.prefix import Tokens
from core.scheduler.columns import Columns
from core.step import EngineRequest, RequestDelta

Rank = tuple[tuple[float, ...], int]
"""Policy key, then order of arrival: the smallest runs first, the largest is
preempted first.
"""

by_rank = attrgetter("rank")


class State(IntEnum):
    """State of a request."""

    WAITING = 0
    """In the queue."""
    PARKED = 1
    """Held back by an extension until it is woken."""
    RUNNING = 2
    """Has a row; the columns hold its progress."""
    ENDED = 3
    """Finished, aborted or failed."""


class Request:
    """One request between `add` and its end.

    Extensions read `request_id`, `sampling`, `features`, `prompt_len`, `num_tokens`,
    `tokens`, `row`, `keys`, `tables` and `num_published`. What they put into
    `feature_outputs` reaches their admission halves.
    """

    def __init__(
        self,
        source: EngineRequest,
        arrival: int,
        max_model_len: int,
        lease: Lease,
        columns: Columns,
    ) -> None:
        self.source: Final = source
        self.request_id: Final = source.request_id
        self.sampling: Final = source.sampling
        self.arrival: Final = arrival
        self.lease: Final = lease
        self.prompt_len: Final = len(source.prompt_token_ids)
        self._columns: Final = columns
        self._tokens = [*source.prompt_token_ids, *source.output_token_ids]
        """Known tokens while the request has no row."""
        self.limit: Final = min(self.prompt_len + source.max_tokens, max_model_len)
        """Number of known tokens at which the request ends."""
        eos = () if source.sampling.ignore_eos else source.eos_token_ids
        self.stops: Final = frozenset((*eos, *source.sampling.stop_token_ids))
        """Token ids that end the request."""
        self.computed = 0
        self.last_step = 0
        """Last step that contains the request."""
        self.state = State.WAITING
        self.rank: Rank = ((), arrival)
        self.row = -1
        self.num_preemptions = 0
        self.num_cached = 0
        self.started = False
        self.reserved: int | None = None
        """Leading tokens cached when blocks for all known tokens were reserved."""
        self.external_kv = KVTrust.VERIFIED
        """Trust in what an extension loads before the next start; INVALID: ignore it."""
        self.skips_tiers = False
        """Whether KV tiers are no longer looked up, after one returned wrong blocks."""
        self.invalid_through_step = 0
        """Last step with invalid tokens of this request."""
        self.feature_outputs: dict[str, bytes] = {}
        """Payloads for admission halves, by feature; sent with the next delta."""
        self.next_prompt_logprob = 1
        """Next prompt position to deliver log-probabilities of; the first token has none."""

    @property
    def features(self) -> dict[str, bytes]:
        """Payloads of the admission extensions, by feature."""
        return self.source.features

    @property
    def num_tokens(self) -> int:
        """Number of known tokens: prompt and generated."""
        return len(self._tokens) if self.row < 0 else int(self._columns.known[self.row])

    @property
    def tokens(self) -> Tokens:
        """Known tokens: a list, or a view of the row's column, which the next step changes."""
        if self.row < 0:
            return self._tokens
        return self._columns.tokens[self.row, : self.num_tokens]

    @property
    def keys(self) -> list[bytes]:
        """Keys of the prefix hash chain computed so far."""
        return self.lease.keys

    @property
    def tables(self) -> list[list[int]]:
        """Block table per KV group; 0 for positions without a block."""
        return self.lease.tables

    @property
    def num_published(self) -> int:
        """Leading tokens with blocks in the prefix cache."""
        return self.lease.num_published

    @property
    def planned(self) -> int:
        """Leading tokens cached or planned, or so when the request lost its row."""
        return self.computed if self.row < 0 else int(self._columns.planned[self.row])

    def enter(self, row: int) -> None:
        """Take a row; from now on the columns hold the tokens."""
        self._columns.enter(row, self._tokens, self.limit)
        self.row = row

    def leave(self) -> int:
        """Give the row up and return it."""
        self.computed = self.planned
        row = self.row
        self._tokens = self._columns.leave(row)
        self.row = -1
        return row

    @property
    def reads_cache(self) -> bool:
        """Whether the request may start from cached keys and values."""
        sampling = self.sampling
        return not sampling.skip_reading_prefix_cache and sampling.prompt_logprobs is None

    def queued_view(self) -> QueuedRequest:
        """Return the facts for a scheduling policy."""
        return QueuedRequest(
            self.request_id,
            self.source.priority,
            self.source.arrival_s,
            self.prompt_len,
            self.num_preemptions,
        )

    def delta(self, **fields: Any) -> RequestDelta:
        """Return a delta of this request with `fields` and the pending feature outputs."""
        outputs = self.feature_outputs
        self.feature_outputs = {}
        return RequestDelta(
            request_id=self.request_id,
            num_cached_tokens=self.num_cached,
            features=outputs,
            **fields,
        )

    def append_tokens(
        self, new: list[int], *, in_columns: bool = False
    ) -> tuple[int, str | None, int | None]:
        """Append sampled tokens up to the first that ends the request.

        Returns (number of tokens appended, finish reason, stop token). `in_columns`:
        `new` is one token that the columns already have.
        """
        known = self.num_tokens - in_columns
        count, reason, stop = self._end_of(known, new)
        if self.row < 0:
            self._tokens += new[:count]
        elif not in_columns:
            self._columns.extend(self.row, known, new[:count])
        return count, reason, stop

    def _end_of(self, known: int, new: list[int]) -> tuple[int, str | None, int | None]:
        stops = self.stops
        earliest = self.prompt_len + self.sampling.min_tokens
        for count, token in enumerate(new, 1):
            if token in stops and known + count > earliest:
                is_eos = token in self.source.eos_token_ids and not self.sampling.ignore_eos
                return count, "stop", None if is_eos else token
            if known + count >= self.limit:
                return count, "length", None
        return len(new), None, None


class WaitingQueue:
    """Waiting requests sorted by rank, which is unique and constant while a
    request is queued.
    """

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def head(self) -> Request | None:
        """The next request to start."""
        return self._requests[0] if self._requests else None

    def add(self, request: Request) -> None:
        """Insert a request by rank."""
        requests = self._requests
        if not requests or requests[-1].rank < request.rank:
            requests.append(request)
        else:
            insort(requests, request, key=by_rank)

    def remove(self, request: Request) -> None:
        """Remove a request from any position."""
        del self._requests[bisect_left(self._requests, request.rank, key=by_rank)]
