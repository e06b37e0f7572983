"""Admission half: splits a prompt into encoder input and decoder prompt, and checks both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from core.api import InvalidRequest
from core.api.features import AdmissionContext, PendingRequest, Unsupported
from core.api.serving import Prompt
from core.model_spec.encoder import EncoderFacts, EncoderInput

FEATURE: Final = "encoder"
"""Feature name of the model's facts and the rows' inputs."""
ENCODER = "encoder_prompt"
DECODER = "decoder_prompt"
FEATURES = "input_features"


class EncoderPrompts:
    """Reads the prompt as encoder input, or a dict with a prompt for encoder and decoder each."""

    prompt_keys: tuple[str, ...] = ()

    def attach(self, context: AdmissionContext) -> None:
        """Read the model's encoder facts, if it has an encoder."""
        facts = context.facts.get(FEATURE)
        self._facts: EncoderFacts | None = None
        if facts is not None:
            self._facts = msgspec.msgpack.decode(facts, type=EncoderFacts)
        self._read = context.read
        names = (ENCODER, DECODER, FEATURES)
        self.prompt_keys = names if self._facts is not None else ()
        self.unsupported = dict.fromkeys(
            names, Unsupported("is for models with an encoder, and this one has none")
        )

    def applies_to(self, request: PendingRequest) -> bool:
        """Return whether the model has an encoder."""
        return self._facts is not None

    def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with the decoder prompt, and the encoder input in its features."""
        facts = self._facts
        assert facts is not None
        source, target = self._parts(request, facts)
        read = features_input(source, facts) if not facts.vocab_size else token_input(source, facts)
        return replace(
            request,
            prompt_token_ids=decoder_tokens(target.token_ids, facts),
            text=target.text,
            features={**request.features, FEATURE: msgspec.msgpack.encode(read)},
            num_encoder_positions=read.length,
            cache_salt=request.cache_salt or source.cache_salt,
            extra_fields={
                **request.extra_fields,
                "encoder_prompt": source.text,
                "encoder_prompt_token_ids": read.token_ids,
            },
        )

    def _parts(self, request: PendingRequest, facts: EncoderFacts) -> tuple[Prompt, Prompt]:
        """Return (encoder prompt, decoder prompt)."""
        given = request.plugin_fields
        if ENCODER not in given and DECODER not in given:
            return Prompt(request.prompt_token_ids, request.text, plugin_fields=given), Prompt([])
        for name, is_given in (
            ("prompt", request.prompt_token_ids or request.text is not None),
            (FEATURES, FEATURES in given),
        ):
            if is_given:
                raise InvalidRequest(
                    name, f"cannot be combined with {ENCODER} and {DECODER}; remove it."
                )
        if ENCODER not in given:
            raise InvalidRequest(ENCODER, "is missing; this model's encoder needs it.")
        source = self._read(given[ENCODER], True, facts.max_len)
        target = self._read(given[DECODER], False) if DECODER in given else Prompt([])
        for name in sorted(
            {*source.plugin_fields, *target.plugin_fields}
            - ({FEATURES} - target.plugin_fields.keys())
        ):
            raise InvalidRequest(name, f"is not allowed within {ENCODER} or {DECODER}.")
        return source, target


def token_input(source: Prompt, facts: EncoderFacts) -> EncoderInput:
    """Return token ids as encoder input. Raises `InvalidRequest`."""
    token_ids = source.token_ids
    if FEATURES in source.plugin_fields:
        raise InvalidRequest(
            FEATURES, "is not supported: this model's encoder reads text or token ids."
        )
    if not token_ids:
        raise InvalidRequest(ENCODER, "is empty; at least one token is needed.")
    if len(token_ids) > facts.max_len:
        raise InvalidRequest(
            ENCODER,
            f"has {len(token_ids)} tokens, but the model's encoder takes {facts.max_len}. Shorten "
            "it, or raise --max-model-len where the model allows.",
        )
    for token in token_ids:
        if type(token) is not int or not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                ENCODER, f"token id {token!r} is outside the vocabulary of {facts.vocab_size}."
            )
    return EncoderInput(len(token_ids), list(token_ids))


def features_input(source: Prompt, facts: EncoderFacts) -> EncoderInput:
    """Return an array of shape `facts.shape` as encoder input. Raises `InvalidRequest`."""
    import numpy as np  # lazy: heavy dependency

    size, frames = facts.shape
    if FEATURES not in source.plugin_fields:
        raise InvalidRequest(
            ENCODER,
            f"has no {FEATURES!r}: this model's encoder reads features, an array of [{size}, "
            f"{frames}] numbers, not text.",
        )
    if source.token_ids or source.text is not None:
        raise InvalidRequest(
            "prompt",
            f"cannot be combined with {FEATURES!r}: this model's encoder reads only these.",
        )
    try:
        array = np.ascontiguousarray(source.plugin_fields[FEATURES], dtype="<f4")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(FEATURES, f"must be an array of numbers: {error}.") from error
    if array.shape != facts.shape:
        raise InvalidRequest(
            FEATURES,
            f"has the shape {list(array.shape)}; the model takes [{size}, {frames}], one input at "
            "a time, as padded by its feature extractor.",
        )
    if not np.isfinite(array).all():
        raise InvalidRequest(FEATURES, "holds numbers that are not finite.")
    return EncoderInput(-(-frames // 2), features=array.tobytes(), shape=(size, frames))


def decoder_tokens(token_ids: Sequence[int], facts: EncoderFacts) -> list[int]:
    """Return the decoder prompt: `token_ids` after the first start token, or all start tokens."""
    start = list(facts.start_tokens)
    if not token_ids:
        return start
    return [*token_ids] if token_ids[0] in start[:1] else [*start[:1], *token_ids]
