"""Prompts: the forms users may pass, and a prompt after tokenization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, SupportsIndex, TypedDict

from core.errors import InvalidRequest


class TextPrompt(TypedDict, total=False):
    """A prompt as text."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; `prompt` may hold their text."""

    prompt_token_ids: list[int]
    prompt: str
    cache_salt: str


class FeaturesPrompt(TypedDict):
    """Input features of an encoder."""

    input_features: Any
    """Array of numbers in the model's shape."""


class ExplicitEncoderDecoderPrompt(TypedDict, total=False):
    """Encoder and decoder prompt; without the latter the model's default start is used."""

    encoder_prompt: str | list[int] | TextPrompt | TokensPrompt | FeaturesPrompt
    decoder_prompt: str | list[int] | TextPrompt | TokensPrompt | None


PromptType = (
    str | list[int] | TextPrompt | TokensPrompt | FeaturesPrompt | ExplicitEncoderDecoderPrompt
)

PROMPT_KEYS: Final = ("prompt", "prompt_token_ids", "cache_salt")
"""Keys of a prompt dict; admission extensions read further ones."""


class RenderedText(str):
    """A rendered conversation. Only the template's own special tokens are
    special tokens; those spelled in a message are text.
    """

    control_spans: Sequence[tuple[int, int]]
    """Character ranges of the template's special tokens, in order."""

    def __new__(cls, text: str, control_spans: Sequence[tuple[int, int]]) -> RenderedText:
        made = super().__new__(cls, text)
        made.control_spans = control_spans
        return made

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        """Return a part; a slice of step 1 holds its own spans."""
        part = super().__getitem__(key)
        if not isinstance(key, slice):
            return part
        start, stop, _ = key.indices(len(self))
        spans = [(a - start, b - start) for a, b in self.control_spans if start <= a and b <= stop]
        return RenderedText(part, spans)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt."""

    token_ids: list[int]
    text: str | None = None
    """A `RenderedText` of a conversation."""
    cache_salt: str = ""
    plugin_fields: Mapping[str, Any] = field(default_factory=dict)
    """Values of its dict that admission extensions read."""


def as_list(prompts: Any) -> list[Any]:
    """Return a list of prompts: a single text, id list or dict is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Iterable):
        raise InvalidRequest("prompts", f"must be a prompt or a list of prompts, not {prompts!r}.")
    listed = list(prompts)
    return [listed] if listed and isinstance(listed[0], int) else listed


def token_ids_of(value: Any) -> list[int]:
    """Return token ids as a list. Raises `InvalidRequest` for anything else."""
    if not isinstance(value, (list, tuple)):
        kind = type(value).__name__
        raise InvalidRequest("prompt", f"must be a text, token ids or a dict of them, not {kind}.")
    return list(value)
