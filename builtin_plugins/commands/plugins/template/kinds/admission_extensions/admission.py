"""Says something before the prompts of those who ask with the keyword `acme`."""

from __future__ import annotations

from dataclasses import replace

from core.api import Draft, Edge, InvalidRequest


class Acme:
    """Completes requests that give something under its name; all others never see it."""

    keywords = ("acme",)
    """Of `generate` and `chat`; `fields` are those of requests over HTTP."""
    fields = ("acme",)

    def attach(self, edge: Edge) -> None:
        """Take what the engine offers, once it has started."""
        self._read = edge.read

    def prepare(self, draft: Draft) -> Draft:
        """Return the request with the words before it. Raises `InvalidRequest`."""
        words = draft.given["acme"]
        if not isinstance(words, str):
            raise InvalidRequest("acme", f"must be a text, not {type(words).__name__}.")
        begin = self._read(words, add_special_tokens=False)
        return replace(draft, prompt_token_ids=[*begin.token_ids, *draft.prompt_token_ids])
