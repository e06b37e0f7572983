"""The scheduler's record of one request: its tokens, how far they are planned, and when it ends."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from core.contracts import QueuedRequest
from core.kv import Lease
from core.kv.prefix import Tokens
from core.scheduler.columns import Columns
from core.step import EngineRequest, RequestDelta

Rank = tuple[tuple[float, ...], int]
"""Policy key, then order of arrival: the smallest runs first, the largest is preempted first."""


class State(IntEnum):
    """Where a request is."""

    WAITING = 0
    PARKED = 1
    """An extension keeps it out of the queue until it is woken."""
    RUNNING = 2
    """It has a row; what it computes and how far it is stands in the columns."""
    ENDED = 3


class Request:
    """One request between `add` and its end.

    Extensions read `request_id`, `sampling`, `features`, `prompt_len`, `num_tokens`, `tokens`,
    `row`, `keys`, `tables` and `num_offered`; what they put into `news` reaches the edge.
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
        """Known tokens while it has no row."""
        self.limit: Final = min(self.prompt_len + source.max_tokens, max_model_len)
        """Known tokens at which it ends."""
        eos = () if source.sampling.ignore_eos else source.eos_token_ids
        self.stops: Final = frozenset((*eos, *source.sampling.stop_token_ids))
        self.computed = 0
        self.last_step = 0
        """Last step that names it."""
        self.state = State.WAITING
        self.rank: Rank = ((), arrival)
        self.row = -1
        self.num_preemptions = 0
        self.num_cached = 0
        self.started = False
        self.reserved: int | None = None
        """Leading tokens that were cached when room for all known ones was reserved; None: none is
        reserved.
        """
        self.spoiled = False
        """What an extension brings is not to be trusted in the next start."""
        self.misled = False
        """What a tier brought was wrong, so none is asked again."""
        self.distrusted = 0
        """Last step whose tokens are not to be trusted."""
        self.news: dict[str, bytes] = {}
        """What extensions tell their halves at the edge, by feature: at its end at the latest."""
        self.prompt_done = 1
        """Next prompt position whose log-probabilities were not yet delivered; the first token has
        none.
        """

    @property
    def features(self) -> dict[str, bytes]:
        """What features at the edge say of it."""
        return self.source.features

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was generated."""
        return len(self._tokens) if self.row < 0 else int(self._columns.known[self.row])

    @property
    def tokens(self) -> Tokens:
        """Known tokens: a list, or the row's column of them, which the next step changes."""
        return self._tokens if self.row < 0 else self._columns.tokens[self.row, : self.num_tokens]

    @property
    def keys(self) -> list[bytes]:
        """Keys of the prefix chain, as far as anybody has asked for them."""
        return self.lease.keys

    @property
    def tables(self) -> list[list[int]]:
        """Block ids per KV group by position; 0 where it holds none."""
        return self.lease.tables

    @property
    def num_offered(self) -> int:
        """Leading tokens whose keys and values others may find: what is known to be right."""
        return self.lease.offered

    @property
    def planned(self) -> int:
        """Leading tokens whose keys and values are cached or planned, or were when it lost its row."""
        return self.computed if self.row < 0 else int(self._columns.planned[self.row])

    def enter(self, row: int) -> None:
        """Take a row: from here on its tokens are in the columns."""
        self._columns.enter(row, self._tokens, self.limit)
        self.row = row

    def leave(self) -> int:
        """Give the row back and return it."""
        self.computed = self.planned
        row = self.row
        self._tokens = self._columns.leave(self.row)
        self.row = -1
        return row

    @property
    def reads_cache(self) -> bool:
        """Say whether it may start from cached keys and values."""
        return not self.sampling.skip_reading_prefix_cache and self.sampling.prompt_logprobs is None

    def facts(self) -> QueuedRequest:
        """Return what a scheduling policy may know."""
        return QueuedRequest(
            self.request_id,
            self.source.priority,
            self.source.arrival_s,
            self.prompt_len,
            self.num_preemptions,
        )

    def say(self, **news: Any) -> RequestDelta:
        """Return a delta about this request."""
        told = self.news
        self.news = {}
        return RequestDelta(
            request_id=self.request_id, num_cached_tokens=self.num_cached, features=told, **news
        )

    def take(self, new: list[int], *, said: bool = False) -> tuple[int, str | None, int | None]:
        """Append sampled tokens up to the first that ends it; return (tokens taken, finish reason,
        stop token).

        `said`: it is one token, which the columns have already.
        """
        known = self.num_tokens - said
        count, reason, stop = self._end_of(known, new)
        if self.row < 0:
            self._tokens += new[:count]
        elif not said:
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
