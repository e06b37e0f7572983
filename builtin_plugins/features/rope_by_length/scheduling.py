"""Scheduler half: computes a request again once it is longer than the short context.

A short request stops at the last position that the factors of short texts serve. When its next
token is known, it is aborted and added again with the tokens it has and a cache domain of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.api import InvalidRequest
from core.api.execution import EngineRequest, RequestDelta, StepPlan

NAME: Final = "rope_by_length"
SHORT: Final = b"short"
"""Payload of requests that are computed with the factors of short texts."""
NEAR: Final = 1024
"""Distance from the end of the short context, in tokens; no step adds more to a decode row."""


class LengthTracker:
    """Holds short requests back at the end of the short context."""

    name = NAME

    def __init__(self, short_context: int) -> None:
        self.short_context: Final = short_context
        self.outgrown: dict[str, Any] = {}
        """Records of requests with a token beyond the short context, by id."""
        self.unsent: dict[str, Mapping[str, bytes]] = {}
        """Feature outputs of requests that are being added again."""
        self._num_short = 0

    def wrap(self, scheduler: Any) -> LengthScheduler:
        """Return the scheduler that adds outgrown requests again."""
        return LengthScheduler(scheduler, self)

    def arrived(self, request: Any) -> None:
        """Count short requests; hand over feature outputs."""
        self._num_short += NAME in request.features
        request.feature_outputs.update(self.unsent.pop(request.request_id, {}))

    def finished(self, request: Any) -> bool:
        """Forget a short request."""
        self._num_short -= NAME in request.features
        self.outgrown.pop(request.request_id, None)
        return False

    def may_start(self, request: Any) -> bool:
        """Park a request that was preempted with a token beyond the short context."""
        if NAME not in request.features or request.num_tokens <= self.short_context:
            return True
        self.outgrown[request.request_id] = request
        return False

    def is_active(self) -> bool:
        """Return whether any request is short."""
        return self._num_short > 0

    def limits(self, rows: Any) -> Mapping[int, int]:
        """End the steps of short requests, draft tokens included, with the short context."""
        own = rows.rows
        left = self.short_context - rows.planned[own] - rows.num_unverified[own]
        limits = {}
        for row, count in zip(own[left < NEAR].tolist(), left[left < NEAR].tolist(), strict=True):
            request = rows.request(row)
            if NAME in request.features:
                limits[row] = max(count, 0)
                if request.num_tokens > self.short_context:
                    self.outgrown[request.request_id] = request
        return limits


class LengthScheduler:
    """A scheduler that computes outgrown requests again; used instead of it."""

    def __init__(self, scheduler: Any, tracker: LengthTracker) -> None:
        self._scheduler = scheduler
        self._tracker = tracker
        self._waiting: dict[str, EngineRequest] = {}
        """Aborted requests with blocks that another extension still uses, by id."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "call_soon":
            self._scheduler.call_soon = value
        else:
            object.__setattr__(self, name, value)

    @property
    def has_work(self) -> bool:
        """Whether a step or a result can make progress, or a request waits to be added again."""
        return bool(self._waiting) or self._scheduler.has_work

    def add(self, request: EngineRequest) -> None:
        """Queue a request as a short or a long one."""
        num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        if num_tokens <= self._tracker.short_context:
            features = {**request.features, NAME: SHORT}
            self._scheduler.add(msgspec.structs.replace(request, features=features))
        else:
            self._scheduler.add(self._as_long(request))

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in any state."""
        if self._waiting.pop(request_id, None) is not None:
            return RequestDelta(request_id=request_id, finish_reason="abort")
        delta: RequestDelta | None = self._scheduler.abort(request_id)
        return delta

    def schedule(self) -> StepPlan | None:
        """Return the next plan, after requests that have outgrown the short context are queued."""
        self._add_waiting()
        plan: StepPlan | None = self._scheduler.schedule()
        while self._tracker.outgrown:
            while self._tracker.outgrown:
                self._restart(self._tracker.outgrown.popitem()[1])
            self._add_waiting()
            if plan is None:
                plan = self._scheduler.schedule()
        return plan

    def _restart(self, request: Any) -> None:
        """Abort a short request, to be added again as a long one."""
        source: EngineRequest = request.source
        outputs = list(request.tokens)[request.prompt_len :]
        delta = self._scheduler.abort(request.request_id)
        self._tracker.unsent[request.request_id] = delta.features
        features = {name: data for name, data in source.features.items() if name != NAME}
        # Those of the prompt were returned.
        sampling = msgspec.structs.replace(source.sampling, prompt_logprobs=None)
        self._waiting[request.request_id] = msgspec.structs.replace(
            self._as_long(source),
            sampling=sampling,
            features=features,
            output_token_ids=[int(token) for token in outputs],
        )

    def _add_waiting(self) -> None:
        for request_id, request in list(self._waiting.items()):
            try:
                self._scheduler.add(request)
            except InvalidRequest:
                continue  # an extension still uses its blocks
            del self._waiting[request_id]

    def _as_long(self, request: EngineRequest) -> EngineRequest:
        """Return a request with cache keys of its own: long tables depend on the served context."""
        served = self._scheduler.limits.max_model_len
        domains = (*request.cache_domains, (NAME, served.to_bytes(16, "little")))
        return msgspec.structs.replace(request, cache_domains=domains)
