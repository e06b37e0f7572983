"""What the engine owes its clients: every open request with the tokens it has given, and who is
suspected of what.

Knows no process and no clock. After the engine's death it says what goes on, from where, and what
must not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

from core.api import EngineRequest, RequestDelta, StepNews

MOST_STRIKES: Final = 2
"""A request that was found to have killed the engine this often, in the same place, is not tried
again ...
"""
MOST_KILLS: Final = 5
"""... but more often when somebody outside seems to have done it: whoever kills at random may hit
several trials.
"""
LOST_TOKENS: Final = 16
"""The last tokens before a crash may not arrive, so that the same place can look different by as
many.
"""


@dataclass(slots=True)
class Debt:
    """One open request."""

    request: EngineRequest
    token_ids: list[int] = field(default_factory=list)
    """What it has generated, in all lives of the engine."""
    num_prompt_logprobs: int = 0
    """Prompt positions whose log-probabilities were given."""
    repeated: int = 0
    """How many of them this life gives once more."""
    given: bool = True
    """The engine has it."""
    started: bool = False
    """The engine is computing it."""
    strikes: int = 0
    struck_at: int = -1
    """Number of tokens it had when the engine last died under it."""
    suspected: bool = False
    guilty: bool = False

    @property
    def is_suspect(self) -> bool:
        """Say whether it has got no token since it was in a step the engine died in."""
        return self.suspected and self.struck_at == len(self.token_ids)


class Death(IntEnum):
    """How an engine ended, and so whom that speaks against."""

    KILLED = 0
    """By somebody outside, it seems: against a request that was alone, or that dies a second time
    in one place.
    """
    UNCLEAR = 1
    """By somebody outside or by a request: all it was computing are to be tried alone."""
    FAULT = 2
    """Against all it was computing."""


class Ledger:
    """Open requests by id."""

    def __init__(self) -> None:
        self._debts: dict[str, Debt] = {}

    def __len__(self) -> int:
        return len(self._debts)

    def __contains__(self, request_id: str | None) -> bool:
        return request_id in self._debts

    def open(self, requests: Iterable[EngineRequest]) -> None:
        """Take requests on."""
        for request in requests:
            self._debts[request.request_id] = Debt(request)

    def close(self, request_id: str) -> bool:
        """Forget a request; False if it is unknown."""
        return self._debts.pop(request_id, None) is not None

    def start(self, request_ids: Iterable[str]) -> None:
        """The step that begins is this life's first to compute these requests."""
        for request_id in request_ids:
            if request_id in self._debts:
                self._debts[request_id].started = True

    def take(self, news: StepNews) -> StepNews:
        """Note what a step brought and return it, without what clients have already and what nobody
        waits for.
        """
        debts = [
            debt
            for request_id in news.request_ids
            if (debt := self._debts.get(request_id)) is not None
        ]
        if news.counts or len(debts) < len(news.request_ids):
            return StepNews(deltas=self._take(news))
        for debt, token in zip(debts, news.token_ids, strict=True):
            debt.token_ids.append(token)
            debt.started = True
        return StepNews(news.request_ids, news.token_ids, self._take(news.deltas))

    def _take(self, deltas: Iterable[RequestDelta]) -> list[RequestDelta]:
        news = []
        for delta in deltas:
            debt = self._debts.get(delta.request_id)
            if debt is None:
                continue
            if delta.token_ids:
                debt.token_ids += delta.token_ids
                debt.started = True
            if delta.prompt_logprobs:
                delta = _without_repeated(debt, delta)
            if delta.finish_reason is not None:
                del self._debts[delta.request_id]
            news.append(delta)
        return news

    def rest(self, request_id: str) -> None:
        """The engine has not got this request any more, for now."""
        if request_id in self._debts:
            self._debts[request_id].given = self._debts[request_id].started = False

    def bury(self, death: Death) -> tuple[list[str], list[str]]:
        """The engine has died: return the requests to try alone, the least suspicious first, and
        all others.

        Who was alone gets a strike, at a fault everybody. Strikes count in one place. Guilty is who
        has enough of them and was alone at the last.
        """
        given = [debt for debt in self._debts.values() if debt.given]
        running = [
            debt for debt in given if debt.started
        ] or given  # the news of a first step may be lost with it
        alone = len(running) == 1
        for debt in running:
            debt.suspected = (
                alone or death is not Death.KILLED or debt.struck_at == len(debt.token_ids)
            )
            if len(debt.token_ids) - debt.struck_at > (LOST_TOKENS if death is Death.FAULT else 0):
                debt.strikes = 0
            debt.struck_at = len(debt.token_ids)
            debt.strikes += alone or death is Death.FAULT
            debt.guilty = alone and debt.strikes >= (
                MOST_KILLS if death is Death.KILLED else MOST_STRIKES
            )
        for debt in given:
            debt.given = debt.started = False
        trials = {rid: debt.strikes for rid, debt in self._debts.items() if debt.is_suspect}
        return sorted(trials, key=trials.__getitem__), [
            rid for rid in self._debts if rid not in trials
        ]

    def condemned(self) -> list[RequestDelta]:
        """Return, once, the ends of the requests that must not be tried again."""
        guilty = {rid: debt.strikes for rid, debt in self._debts.items() if debt.guilty}
        for request_id in guilty:
            del self._debts[request_id]
        message = (
            "the engine died {} times while it computed this request, so it is not tried again ({})"
        )
        return [
            RequestDelta(request_id=rid, finish_reason="error", error=message.format(strikes, rid))
            for rid, strikes in guilty.items()
        ]

    def resumption(self, request_id: str) -> EngineRequest | None:
        """Return the request as it goes on: behind the tokens it has. None when it has ended."""
        debt = self._debts.get(request_id)
        if debt is None:
            return None
        debt.given = True
        debt.repeated = debt.num_prompt_logprobs
        sampling = debt.request.sampling
        if debt.token_ids and sampling.prompt_logprobs is not None:
            sampling = sampling.clone(prompt_logprobs=None)  # complete before the first token
        return msgspec.structs.replace(
            debt.request, sampling=sampling, output_token_ids=list(debt.token_ids)
        )


def _without_repeated(debt: Debt, delta: RequestDelta) -> RequestDelta:
    given = delta.prompt_logprobs or []
    known = min(debt.repeated, len(given))
    debt.repeated -= known
    debt.num_prompt_logprobs += len(given) - known
    return msgspec.structs.replace(delta, prompt_logprobs=given[known:] or None) if known else delta
