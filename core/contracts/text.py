"""Tokenizers and chat renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back. Constructed with (source, config); a function in its place may return
    None: there is none.

    Optional: `encode_fitted(text, pair, max_tokens)` returns the ids and the type ids (0, and 1 in
    the second text) of a text or, where `pair` is no None, of two, with special tokens and cut to
    fit: ends of texts, the longer one's first. Without it pooling models take no pairs, and long
    texts are cut without regard to special tokens. And `joined_bytes(skip_special_tokens)` returns
    a mapping from every id to bytes, where a text is nothing but those of its tokens joined and
    read as UTF-8, else None. With it text under way costs a look-up for each token.

    Optional: `joints`, a compiled pattern. Where a match of it ends, between two characters that it
    sees, a text may be cut: the tokens before the cut are those of the text before it alone, and
    those behind it are the same whatever stands before the match. With it long texts are tokenized
    piece by piece, and only as far as can be seen of them; without it a text of which only the end
    is wanted may be refused for its length.

    Optional: `response_template`, a mapping by which the checkpoint says how its model writes
    thoughts and calls.
    """

    vocab_size: int
    """Ids are below this."""
    eos_token_id: int | None
    special_ids: frozenset[int]

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """Jinja text, or several by name: "default", and "tool_use" for requests that bring tools."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written in the text become their ids."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return text; bytes that are not (yet) UTF-8 come out as U+FFFD."""

    def token_text(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it."""


class ChatRenderer(Protocol):
    """Turns messages into the model's prompt text. Constructed with (tokenizer, source, config)."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. Raises `InvalidRequest` naming the message that cannot be rendered."""
