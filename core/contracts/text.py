"""Tokenizers and chat renderers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Converts between text and token ids. Constructed with (source, config).

    The entry may also be a function; it may return None for a model without a
    tokenizer.

    Optional members:
    - `encode_fitted(text, pair, max_tokens)` returns ids and type ids (1 in the second
      text) of a text or a pair, with special tokens, truncated to fit: the longer text
      loses its end first. Without it pooling models take no pairs, and truncation
      ignores special tokens.
    - `joined_bytes(skip_special_tokens)` returns a mapping of every id to bytes if the
      text of tokens is their joined bytes decoded as UTF-8, else None. Detokenizing a
      stream is then one lookup per token.
    - `long_texts()` returns an object that tokenizes long texts only as far as needed:
      `encode(text, special, limit, stopped)` raises `InvalidRequest` as soon as there are more than
      `limit` tokens, `encode_end(text, special, keep, stopped)` returns at least the last `keep`.
      They call `stopped` now and then, and raise when it returns True. Without them a long text is
      tokenized as a whole. The kind's `ChunkedTokenizer` is one.
    - `response_template`, the checkpoint's description of reasoning and tool-call
      syntax.
    - `token_bytes(token_id)` returns the bytes that a token adds to a text.
    - `control_texts` maps the text of each control token to whether it is
      reserved: False if answers hold it, such as `<think>`.
    - `encode_rendered(text, add_special_tokens)` returns the ids of a
      `RenderedText`: control tokens outside of its spans are text.
    """

    vocab_size: int
    """Vocabulary size; ids are below it."""
    eos_token_id: int | None
    special_ids: frozenset[int]

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """Jinja text, or several by name: "default", and "tool_use" for requests with tools."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written in the text become their ids."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text; incomplete UTF-8 sequences become U+FFFD."""

    def token_text(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it."""


class AnswerFinder(Protocol):
    """Finds the answer in one growing output."""

    def split(self, text: str) -> Iterable[tuple[str, bool]]:
        """Yield decided pieces; True: of the answer."""

    def flush(self) -> str:
        """Return the answer's undecided end."""


class ChatRenderer(Protocol):
    """Renders messages into the prompt text.

    Constructed with (tokenizer, source, config). A renderer may also have
    `template_names(chat_template=None, has_tools=False)`, which returns the arguments
    that a template reads and the texts that it compares: arguments that it does not
    read are reported to clients. `render` may take
    `chat_template_content_format`.
    """

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
        """Return the prompt.

        Raises `InvalidRequest` naming a message that cannot be rendered.
        Special tokens that messages spell
        are text in a `RenderedText`.
        """
