"""What the engine owes its clients: every open request with the tokens it has given, and who is suspected of what.

Knows no process and no clock. After the engine's death it says what goes on, from where, and what must not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from core.step import EngineRequest, RequestDelta

MOST_STRIKES: Final = 2
"""A request that was found to have killed the engine this often, at the same token, is not tried again."""


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
    started: bool = False
    """A step of this life computed some of it."""
    moved: bool = False
    """It got a token in this life."""
    strikes: int = 0
    struck_at: int = -1
    """Number of tokens it had at its last strike."""


class Ledger:
    """Open requests by id."""

    def __init__(self) -> None:
        self._debts: dict[str, Debt] = {}

    def __len__(self) -> int:
        return len(self._debts)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._debts

    def open(self, requests: Iterable[EngineRequest]) -> None:
        """Take requests on."""
        for request in requests:
            self._debts[request.request_id] = Debt(request)

    def is_untried(self, request_id: str) -> bool:
        """Say whether a request is open and has got no token in this life."""
        debt = self._debts.get(request_id)
        return debt is not None and not debt.moved

    def close(self, request_id: str) -> bool:
        """Forget a request; False if it is unknown."""
        return self._debts.pop(request_id, None) is not None

    def start(self, request_ids: Iterable[str]) -> None:
        """The step that begins is this life's first to compute these requests."""
        for request_id in request_ids:
            if request_id in self._debts:
                self._debts[request_id].started = True

    def take(self, deltas: Sequence[RequestDelta]) -> list[RequestDelta]:
        """Note what a step brought and return it, without what clients have already and what nobody waits for."""
        news = []
        for delta in deltas:
            debt = self._debts.get(delta.request_id)
            if debt is None:
                continue
            if delta.token_ids:
                debt.token_ids += delta.token_ids
                debt.started = debt.moved = True
            if delta.prompt_logprobs:
                delta = _without_repeated(debt, delta)
            if delta.finish_reason is not None:
                del self._debts[delta.request_id]
            news.append(delta)
        return news

    def bury(self, *, by_hand: bool) -> tuple[list[str], list[str]]:
        """The engine has died: return the requests it was computing and the others, each in order of arrival.

        Computed ones without a token in this life are suspects, else all computed ones. A strike goes to each, but
        if somebody killed the engine `by_hand`, only to one who is the only suspect. Strikes count while the request
        does not get past the token it had.
        """
        running = {rid: debt for rid, debt in self._debts.items() if debt.started}
        suspects = [debt for debt in running.values() if not debt.moved] or list(running.values())
        for debt in suspects:
            if debt.struck_at != len(debt.token_ids):
                debt.strikes, debt.struck_at = 0, len(debt.token_ids)
            debt.strikes += len(suspects) == 1 or not by_hand
        first = sorted(running, key=lambda rid: running[rid].strikes)
        waiting = [rid for rid in self._debts if rid not in running]
        for debt in self._debts.values():
            debt.started = debt.moved = False
        return first, waiting

    def condemned(self) -> list[RequestDelta]:
        """Return, once, the ends of the requests that must not be tried again."""
        guilty = [rid for rid, debt in self._debts.items() if debt.strikes >= MOST_STRIKES]
        for request_id in guilty:
            del self._debts[request_id]
        message = f"the engine died {MOST_STRIKES} times while it computed this request, so it is not tried again"
        return [RequestDelta(request_id=rid, finish_reason="error", error=f"{message} ({rid})") for rid in guilty]

    def resumption(self, request_id: str) -> EngineRequest | None:
        """Return the request as it goes on: behind the tokens it has. None when it has ended."""
        debt = self._debts.get(request_id)
        if debt is None:
            return None
        debt.repeated = debt.num_prompt_logprobs
        sampling = debt.request.sampling
        if debt.token_ids and sampling.prompt_logprobs is not None:
            sampling = sampling.clone(prompt_logprobs=None)  # complete before the first token
        return msgspec.structs.replace(debt.request, sampling=sampling, output_token_ids=list(debt.token_ids))


def _without_repeated(debt: Debt, delta: RequestDelta) -> RequestDelta:
    given = delta.prompt_logprobs or []
    known = min(debt.repeated, len(given))
    debt.repeated -= known
    debt.num_prompt_logprobs += len(given) - known
    return msgspec.structs.replace(delta, prompt_logprobs=given[known:] or None) if known else delta
