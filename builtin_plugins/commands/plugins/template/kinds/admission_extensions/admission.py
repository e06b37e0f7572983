"""An admission extension: prepends text to prompts of requests with the keyword `acme`."""

from __future__ import annotations

from dataclasses import replace

from core.api import InvalidRequest
from core.api.features import AdmissionContext, PendingRequest


class Acme:
    """Completes requests that set its keyword; it never sees others."""

    keywords = ("acme",)
    """Keywords of `generate` and `chat`; `fields` are those of HTTP requests."""
    fields = ("acme",)

    def attach(self, context: AdmissionContext) -> None:
        """Keep the admission context; called once after the start."""
        self._read = context.read

    def prepare(self, draft: PendingRequest) -> PendingRequest:
        """Return the request with the text prepended. Raises `InvalidRequest`."""
        text = draft.plugin_fields["acme"]
        if not isinstance(text, str):
            raise InvalidRequest("acme", f"got {type(text).__name__}; expected a string.")
        prefix = self._read(text, add_special_tokens=False)
        return replace(draft, prompt_token_ids=[*prefix.token_ids, *draft.prompt_token_ids])
