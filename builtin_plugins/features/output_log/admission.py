"""Admission half of the output log: gives each request what its outputs are read with.

The metric sink logs when the request has ended, so streams cost nothing until then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from core.api import EngineConfig
from core.api.features import AdmissionContext, PendingRequest
from core.api.serving import Tokenizer
from core.api.telemetry import RequestStats

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputLog:
    """Reads and logs the outputs of one request."""

    tokenizer: Tokenizer | None
    max_chars: int | None

    def ended(self, stats: RequestStats) -> None:
        """Log each output: its text, or its token ids without a tokenizer."""
        for index, token_ids in enumerate(stats.output_token_ids):
            text = " ".join(map(str, token_ids))
            if self.tokenizer is not None:
                text = self.tokenizer.decode(list(token_ids))
            excerpt = text[: self.max_chars]
            log.info(
                "output %d of request %s: %r%s",
                index,
                stats.request_id,
                excerpt,
                ""
                if len(excerpt) == len(text)
                else f" and {len(text) - len(excerpt)} characters more",
                extra={"request_id": stats.request_id},
            )


class Admission:
    """Adds the output log to every request."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_chars: int | None = config.options.get("max_log_len")
        self._log = OutputLog(None, self._max_chars)

    def attach(self, context: AdmissionContext) -> None:
        """Store the tokenizer."""
        self._log = OutputLog(context.tokenizer, self._max_chars)

    def applies_to(self, request: PendingRequest) -> bool:
        """Return True: every request is logged."""
        return True

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with the output log."""
        return replace(request, extra_fields={**request.extra_fields, "output_log": self._log})


class OutputSink:
    """Metric sink that logs the outputs of ended requests."""

    def __init__(self, config: EngineConfig) -> None:
        """Create the sink; requests bring what their outputs are logged with."""

    def request(self, stats: RequestStats) -> None:
        """Log the outputs of a request."""
        output_log = stats.extra_fields.get("output_log")
        if output_log is not None:
            output_log.ended(stats)
