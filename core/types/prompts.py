"""Prompts in the forms users may write them."""

from __future__ import annotations

from typing import Any, TypedDict


class TextPrompt(TypedDict, total=False):
    """A prompt as text."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; `prompt` may hold the text they came from."""

    prompt_token_ids: list[int]
    prompt: str
    cache_salt: str


class FeaturesPrompt(TypedDict):
    """What an encoder reads that takes features instead of tokens."""

    input_features: Any
    """An array of numbers, as large as the model takes it."""


class ExplicitEncoderDecoderPrompt(TypedDict, total=False):
    """Both prompts of a model with an encoder; without the decoder's, it begins with what the model
    says.
    """

    encoder_prompt: str | list[int] | TextPrompt | TokensPrompt | FeaturesPrompt
    decoder_prompt: str | list[int] | TextPrompt | TokensPrompt | None


PromptType = (
    str | list[int] | TextPrompt | TokensPrompt | FeaturesPrompt | ExplicitEncoderDecoderPrompt
)
