"""Prompts in every form users write them become token ids.

Knows tokenizer and chat renderer, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.contracts import ChatRenderer, Tokenizer
from core.contracts.times import NOBODY, Blame
from core.errors import InvalidRequest
from core.text.prompts import PROMPT_KEYS, Prompt, token_ids_of
from core.text.windows import CHARS_PER_TOKEN, Stopped, Windows
from core.types import PromptType
from core.types.keywords import Names

LONG_TEXT_CHARS: Final = 8192
"""A longer text takes more than a moment to tokenize."""


class Renderer:
    """Turns prompts and conversations into token ids."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat: ChatRenderer | None,
        encoding: Blame = NOBODY,
    ) -> None:
        """What the tokenizer raises comes through `encoding`, which may name its plugin."""
        self.tokenizer = tokenizer
        self.chat = chat
        self._encoding = encoding
        self._windows: Windows | None = None
        self.keys = Names()
        """Further keys of prompt dicts, which admission extensions read; known when the engine has
        started.
        """

    def prompt(
        self,
        prompt: PromptType | Mapping[str, Any],
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        **reading: Any,
    ) -> Prompt:
        """Return the token ids of a text, of ids, or of a dict with one of them; further keywords
        as in `encode`.

        A dict with keys that extensions read needs neither. Raises `InvalidRequest` for anything
        else, and for text when there is no tokenizer.
        """
        if isinstance(prompt, str):
            return Prompt(
                self.encode(prompt, add_special_tokens, max_tokens=max_tokens, **reading), prompt
            )
        if not isinstance(prompt, Mapping):
            return Prompt(token_ids_of(prompt))
        given = self.keys.sieve(
            prompt, PROMPT_KEYS, f"no plugin reads it; a prompt dict has {self._known()}"
        )
        ids, text, salt = (
            prompt.get(name) for name in ("prompt_token_ids", "prompt", "cache_salt")
        )
        if salt is not None and not isinstance(salt, str):
            raise InvalidRequest("cache_salt", f"must be a text, not {salt!r}.")
        if text is not None and not isinstance(text, str):
            raise InvalidRequest("prompt", f"must be a text, not {text!r}.")
        if ids is not None:
            return Prompt(token_ids_of(ids), text, salt or "", given)
        if text is not None:
            ids = self.encode(text, add_special_tokens, max_tokens=max_tokens, **reading)
            return Prompt(ids, text, salt or "", given)
        if given:
            return Prompt([], None, salt or "", given)
        raise InvalidRequest(
            "prompt", "a prompt dict needs `prompt` (a text) or `prompt_token_ids`."
        )

    def _known(self) -> str:
        return ", ".join((*PROMPT_KEYS, *sorted(self.keys.read)))

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        keep: int | None = None,
        stopped: Stopped = lambda: False,
    ) -> list[int]:
        """Return token ids of a text: all, or at least the last `keep`.

        Raises `InvalidRequest` for what is no text. With `max_tokens` or `keep` no more of a long
        text is read than can be seen of it, or shows that it is too long: the time spent is bounded
        by the limit, not by the client. Between parts of it `stopped` is asked whether anybody
        still waits; `Abandoned` is raised where nobody does.
        """
        if self.tokenizer is None:
            raise InvalidRequest(
                "prompt", "there is no tokenizer (skip_tokenizer_init); give token ids."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                "prompt", f"is not valid text: lone surrogate at character {error.start}."
            ) from error
        short = (
            LONG_TEXT_CHARS
            if max_tokens is None
            else min(LONG_TEXT_CHARS, CHARS_PER_TOKEN * max_tokens)
        )
        if len(text) <= short or max_tokens is keep is None:
            with self._encoding:
                return self.tokenizer.encode(text, add_special_tokens)
        self._windows = self._windows or Windows(self.tokenizer)
        if keep is not None:
            return self._windows.end(text, add_special_tokens, keep, stopped)
        return self._windows.whole(text, add_special_tokens, max_tokens or 0, stopped)

    def messages(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        """Return the prompt of a conversation; options as in `ChatRenderer.render`."""
        text = self.text_of(messages, **options)
        return Prompt(self.encode(text, add_special_tokens=False), text)

    def text_of(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the text of a conversation's prompt; options as in `ChatRenderer.render`."""
        if self.chat is None or self.tokenizer is None:
            raise InvalidRequest(
                "messages",
                "this model has no chat renderer; use completions, or load one (`chat_template`).",
            )
        return self.chat.render(messages, **options)
