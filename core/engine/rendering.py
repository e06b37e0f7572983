"""Prompts in every form users write them become token ids. Knows tokenizer and chat renderer, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.contracts import ChatRenderer, Tokenizer
from core.errors import InvalidRequest
from core.prompts import Prompt, both_prompts, check_keys, split_prompt, token_ids_of
from core.step import EncoderFacts
from core.types import PromptType

CHARS_PER_TOKEN: Final = 8
"""A text with more characters than this for each token allowed is likely too long, so its beginning is read first."""


class Renderer:
    """Turns prompts and conversations into token ids."""

    def __init__(self, tokenizer: Tokenizer | None, chat: ChatRenderer | None) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        self.encoder: EncoderFacts | None = None
        """What the model's encoder takes, where it has one; known when the model is."""

    def prompt(
        self,
        prompt: PromptType | Mapping[str, Any],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
    ) -> Prompt:
        """Return the token ids of a text, of ids, or of a dict with one of them; `max_tokens` as in `encode`.

        Of a model with an encoder these are what that reads, or its part of a dict that has one for the decoder too.
        Raises `InvalidRequest` for anything else, and for text when there is no tokenizer.
        """
        if self.encoder is None:
            return self._read(prompt, add_special_tokens, max_tokens)
        read, said = split_prompt(prompt)
        most = max_tokens and self.encoder.max_len
        source = self._read(read, add_special_tokens, most) if self.encoder.vocab_size else read
        return both_prompts(self.encoder, source, None if said is None else self._read(said, False, max_tokens))

    def _read(self, prompt: Any, add_special_tokens: bool, max_tokens: int | None) -> Prompt:
        if isinstance(prompt, str):
            return Prompt(self.encode(prompt, add_special_tokens, max_tokens=max_tokens), prompt)
        if not isinstance(prompt, Mapping):
            return Prompt(token_ids_of(prompt))
        check_keys(prompt)
        ids, text, salt = (prompt.get(name) for name in ("prompt_token_ids", "prompt", "cache_salt"))
        if salt is not None and not isinstance(salt, str):
            raise InvalidRequest("cache_salt", f"must be a text, not {salt!r}.")
        if text is not None and not isinstance(text, str):
            raise InvalidRequest("prompt", f"must be a text, not {text!r}.")
        if ids is not None:
            return Prompt(token_ids_of(ids), text, salt or "")
        if text is not None:
            return Prompt(self.encode(text, add_special_tokens, max_tokens=max_tokens), text, salt or "")
        raise InvalidRequest("prompt", "a prompt dict needs `prompt` (a text) or `prompt_token_ids`.")

    def encode(self, text: str, add_special_tokens: bool = True, *, max_tokens: int | None = None) -> list[int]:
        """Return token ids of a text.

        Raises `InvalidRequest` for what is no text. With `max_tokens`, a text that is far longer is refused after
        its beginning was read: the time spent is bounded by the limit, not by the client.
        """
        if self.tokenizer is None:
            raise InvalidRequest("prompt", "there is no tokenizer (skip_tokenizer_init); give token ids.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("prompt", f"is not valid text: lone surrogate at character {error.start}.") from error
        if max_tokens is not None:
            _refuse_long(text, max_tokens, self.tokenizer)
        return self.tokenizer.encode(text, add_special_tokens)

    def messages(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int | None = None, **options: Any
    ) -> Prompt:
        """Return the prompt of a conversation; options as in `ChatRenderer.render`, `max_tokens` as in `encode`."""
        if self.chat is None or self.tokenizer is None:
            raise InvalidRequest(
                "messages", "this model has no chat renderer; use completions, or load one (`chat_template`)."
            )
        text = self.chat.render(messages, **options)
        prompt = Prompt(self.encode(text, add_special_tokens=False, max_tokens=max_tokens), text)
        return prompt if self.encoder is None else both_prompts(self.encoder, prompt)


def _refuse_long(text: str, max_tokens: int, tokenizer: Tokenizer) -> None:
    """Raise `InvalidRequest` where ever longer beginnings of a long text show that it has too many tokens."""
    size = CHARS_PER_TOKEN * max_tokens
    while size < len(text):
        num_tokens = len(tokenizer.encode(text[:size], add_special_tokens=False))
        if num_tokens > max_tokens + CHARS_PER_TOKEN:  # the cut itself may have split a few tokens
            raise InvalidRequest(
                "prompt",
                f"has {len(text)} characters, of which the first {size} are {num_tokens} tokens already, but the "
                f"context holds {max_tokens}. Shorten it, or set truncate_prompt_tokens.",
            )
        size *= CHARS_PER_TOKEN
