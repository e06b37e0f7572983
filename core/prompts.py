"""Prompts in the forms users write them, taken apart and checked. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.errors import InvalidRequest, did_you_mean
from core.step import EncoderFacts, EncoderInput

PROMPT_KEYS: Final = ("prompt", "prompt_token_ids", "cache_salt")
ENCODER, DECODER, FEATURES = "encoder_prompt", "decoder_prompt", "input_features"
KEYS: Final = (ENCODER, DECODER, "cache_salt")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it."""

    token_ids: list[int]
    text: str | None = None
    cache_salt: str = ""
    encoder: EncoderInput | None = None
    """What the encoder reads, where the model has one; the rest is the decoder's."""
    encoder_text: str | None = None

    @property
    def source_ids(self) -> list[int]:
        """What the user's text became: for the encoder where there is one."""
        return self.token_ids if self.encoder is None else self.encoder.token_ids


def check_keys(prompt: Mapping[str, Any]) -> None:
    """Refuse what nobody would read; an empty value asks for nothing."""
    for name, value in prompt.items():
        if name not in PROMPT_KEYS and (value is not None and value != {}):
            hint = did_you_mean(str(name), PROMPT_KEYS)
            raise InvalidRequest(str(name), f"no plugin reads it; a prompt dict has {', '.join(PROMPT_KEYS)}{hint}.")


def token_ids_of(value: Any) -> list[int]:
    """Return token ids as a list. Raises `InvalidRequest` for anything else."""
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest("prompt", f"must be a text, token ids or a dict of them, not {type(value).__name__}.")
    return list(value)


def split_prompt(prompt: Any) -> tuple[Any, Any]:
    """Return the encoder's and the decoder's part of a prompt; one without parts is the encoder's."""
    if not isinstance(prompt, Mapping) or not (ENCODER in prompt or DECODER in prompt):
        return prompt, None
    for name in prompt:
        if name not in KEYS:
            hint = did_you_mean(str(name), KEYS) or "."
            raise InvalidRequest(str(name), f"stands beside {ENCODER} and {DECODER}, where nothing reads it{hint}")
    if prompt.get(ENCODER) is None:
        raise InvalidRequest(ENCODER, "is missing; it is what this model's encoder reads.")
    return prompt[ENCODER], prompt.get(DECODER)


def both_prompts(facts: EncoderFacts, source: Any, said: Prompt | None = None) -> Prompt:
    """Return the prompt of a model with an encoder, which reads `source`: a prompt of tokens, or features."""
    said = said or Prompt([])
    tokens = decoder_tokens(said.token_ids, facts)
    if isinstance(source, Prompt):
        read = token_input(source.token_ids, facts)
        return Prompt(tokens, said.text, source.cache_salt, read, source.text)
    return Prompt(tokens, said.text, encoder=features_input(source, facts))


def token_input(token_ids: Sequence[int], facts: EncoderFacts) -> EncoderInput:
    """Return token ids as the encoder takes them."""
    if not token_ids:
        raise InvalidRequest(ENCODER, "is empty; at least one token is needed.")
    if len(token_ids) > facts.max_len:
        raise InvalidRequest(
            ENCODER,
            f"has {len(token_ids)} tokens, but the model's encoder takes {facts.max_len}. Shorten it, or raise "
            "--max-model-len where the model allows.",
        )
    for token in token_ids:
        if type(token) is not int or not 0 <= token < facts.vocab_size:
            raise InvalidRequest(ENCODER, f"token id {token!r} is outside the vocabulary of {facts.vocab_size}.")
    return EncoderInput(len(token_ids), list(token_ids))


def features_input(prompt: Any, facts: EncoderFacts) -> EncoderInput:
    """Return features as the encoder takes them: of any array of numbers, `facts.shape` large."""
    import numpy as np  # lazy: heavy dependency

    size, frames = facts.shape
    given = prompt.get(FEATURES) if isinstance(prompt, Mapping) else None
    if given is None:
        raise InvalidRequest(
            ENCODER,
            f"has no {FEATURES!r}: this model's encoder reads features, an array of [{size}, {frames}] numbers, not text.",
        )
    for name, value in prompt.items():
        if name != FEATURES and value is not None and len(value):
            raise InvalidRequest(str(name), f"stands beside {FEATURES!r}; this model's encoder reads nothing else.")
    try:
        array = np.ascontiguousarray(given, dtype="<f4")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(FEATURES, f"must be an array of numbers: {error}.") from error
    if array.shape != facts.shape:
        raise InvalidRequest(
            FEATURES,
            f"has the shape {list(array.shape)}; the model takes [{size}, {frames}], one input at a time, as its "
            "feature extractor makes and fills them up.",
        )
    if not np.isfinite(array).all():
        raise InvalidRequest(FEATURES, "holds numbers that are not finite.")
    return EncoderInput(-(-frames // 2), features=array.tobytes(), shape=(size, frames))


def decoder_tokens(token_ids: Sequence[int], facts: EncoderFacts) -> list[int]:
    """Return the decoder's prompt: what is given behind the first start token, or all of those."""
    start = list(facts.start_tokens)
    if not token_ids:
        return start
    return [*token_ids] if token_ids[0] in start[:1] else [*start[:1], *token_ids]
