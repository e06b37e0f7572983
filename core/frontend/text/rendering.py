"""Renders prompts of every form to token ids, with the tokenizer and the chat
renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from core.contracts.text import ChatRenderer, Tokenizer
from core.errors import InvalidRequest
from core.plugin.call_timer import NO_BLAME, AnyBlame
from core.types import PromptType
from core.types.plugin_params import KnownNames
from core.types.prompts import PROMPT_KEYS, Prompt, RenderedText, token_ids_of

LONG_TEXT_CHARS: Final = 8192
"""Length from which tokenizing a text is slow."""
CHARS_PER_TOKEN: Final = 8
"""Characters per allowed token from which a text is likely too long."""

Stopped = Callable[[], bool]
"""Returns True once the client has left."""


class Renderer:
    """Turns prompts and conversations into token ids."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat: ChatRenderer | None,
        encoding: AnyBlame = NO_BLAME,
    ) -> None:
        """`encoding` wraps calls of the tokenizer and may attribute exceptions to its plugin."""
        self.tokenizer = tokenizer
        self.chat = chat
        self._encoding = encoding
        self._long_texts: Any = None
        self.keys = KnownNames()
        """Prompt keys that admission extensions read; set once the engine has started."""

    def prompt(
        self,
        prompt: PromptType | Mapping[str, Any],
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        **reading: Any,
    ) -> Prompt:
        """Return a text, ids or a prompt dict as token ids; further keywords
        as in `encode`.

        A dict with keys that extensions read needs neither text nor ids. Raises
        `InvalidRequest` for anything else, and for text without a tokenizer.
        """
        if isinstance(prompt, str):
            ids = self.encode(prompt, add_special_tokens, max_tokens=max_tokens, **reading)
            return Prompt(ids, prompt)
        if not isinstance(prompt, Mapping):
            return Prompt(token_ids_of(prompt))
        known = ", ".join((*PROMPT_KEYS, *sorted(self.keys.read)))
        plugin_fields = self.keys.select_known(
            prompt, PROMPT_KEYS, f"no plugin reads it; a prompt dict has {known}"
        )
        fields: Mapping[str, Any] = prompt
        token_ids = fields.get("prompt_token_ids")
        text = fields.get("prompt")
        salt = fields.get("cache_salt")
        if salt is not None and not isinstance(salt, str):
            raise InvalidRequest("cache_salt", f"must be a text, not {salt!r}.")
        if text is not None and not isinstance(text, str):
            raise InvalidRequest("prompt", f"must be a text, not {text!r}.")
        if token_ids is not None:
            return Prompt(token_ids_of(token_ids), text, salt or "", plugin_fields)
        if text is not None:
            ids = self.encode(text, add_special_tokens, max_tokens=max_tokens, **reading)
            return Prompt(ids, text, salt or "", plugin_fields)
        if plugin_fields:
            return Prompt([], None, salt or "", plugin_fields)
        raise InvalidRequest(
            "prompt", "a prompt dict needs `prompt` (a text) or `prompt_token_ids`."
        )

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        keep: int | None = None,
        stopped: Stopped = lambda: False,
    ) -> list[int]:
        """Return the token ids of a text: all of them, or at least the last
        `keep`.

        Raises `InvalidRequest` for invalid text. With `max_tokens` or `keep`, a long text is read
        by the tokenizer's `long_texts`, if it has them: the limit bounds the time, not the client.
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
        short = LONG_TEXT_CHARS
        if max_tokens is not None:
            short = min(short, CHARS_PER_TOKEN * max_tokens)
        long_texts = getattr(self.tokenizer, "long_texts", None)
        if len(text) <= short or max_tokens is keep is None or long_texts is None:
            with self._encoding:
                return encode_text(self.tokenizer, text, add_special_tokens)
        self._long_texts = self._long_texts or long_texts()
        ids: list[int]
        if keep is not None:
            ids = self._long_texts.encode_end(text, add_special_tokens, keep, stopped)
        else:
            ids = self._long_texts.encode(text, add_special_tokens, max_tokens, stopped)
        return ids

    def messages(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        """Return the prompt of a conversation; options as in `ChatRenderer.render`."""
        text = self.chat_text(messages, **options)
        return Prompt(self.encode(text, add_special_tokens=False), text)

    def chat_text(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt text of a conversation; options as in `ChatRenderer.render`."""
        if self.chat is None or self.tokenizer is None:
            raise InvalidRequest(
                "messages",
                "this model has no chat renderer; use completions, or load one (`chat_template`).",
            )
        return self.chat.render(messages, **options)


def encode_text(tokenizer: Tokenizer, text: str, add_special: bool) -> list[int]:
    """Return ids.

    Special tokens spelled in messages are read as text, or refused.
    """
    if not isinstance(text, RenderedText):
        return tokenizer.encode(text, add_special)
    encode: Any = getattr(tokenizer, "encode_rendered", None)
    if encode is not None:
        ids: list[int] = encode(text, add_special)
        return ids

    def special_in(part: str) -> list[int]:
        found = tokenizer.encode(str(part), False)
        special = tokenizer.special_ids
        return [token for token in found if token in special]

    own = []
    for start, stop in text.control_spans:
        own += special_in(text[start:stop])
    if special_in(text) != own:
        raise InvalidRequest(
            "messages",
            "got the text of a special token; "
            "expected a tokenizer that can read it as text. "
            "Remove it.",
        )
    return tokenizer.encode(str(text), add_special)
