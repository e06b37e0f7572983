"""At the edge: what the encoder reads is taken apart from what the decoder begins with, checked,
and sent along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from core.api import Draft, Edge, EncoderFacts, EncoderInput, InvalidRequest, Prompt, Unserved

FEATURE: Final = "encoder"
"""Under this name models state facts, and rows carry inputs."""
ENCODER = "encoder_prompt"
DECODER = "decoder_prompt"
FEATURES = "input_features"


class EncoderPrompts:
    """Of a model with an encoder a prompt is what that reads, unless it is a dict with a part for
    each.
    """

    prompt_keys: tuple[str, ...] = ()

    def attach(self, edge: Edge) -> None:
        """Read what the model states of its encoder, if it has one."""
        stated = edge.facts.get(FEATURE)
        self._facts = None if stated is None else msgspec.msgpack.decode(stated, type=EncoderFacts)
        self._read = edge.read
        names = (ENCODER, DECODER, FEATURES)
        self.prompt_keys = names if self._facts is not None else ()
        self.unserved = dict.fromkeys(
            names, Unserved("is for models with an encoder, and this one has none")
        )

    def concerns(self, draft: Draft) -> bool:
        """Say whether the model has an encoder."""
        return self._facts is not None

    def prepare(self, draft: Draft) -> Draft:
        """Return the request with the decoder's prompt, and the encoder's input beside it."""
        facts = self._facts
        assert facts is not None
        source, said = self._parts(draft, facts)
        read = features_input(source, facts) if not facts.vocab_size else token_input(source, facts)
        return replace(
            draft,
            prompt_token_ids=decoder_tokens(said.token_ids, facts),
            text=said.text,
            features={**draft.features, FEATURE: msgspec.msgpack.encode(read)},
            beside=read.length,
            cache_salt=draft.cache_salt or source.cache_salt,
            shown={
                **draft.shown,
                "encoder_prompt": source.text,
                "encoder_prompt_token_ids": read.token_ids,
            },
        )

    def _parts(self, draft: Draft, facts: EncoderFacts) -> tuple[Prompt, Prompt]:
        """Return what the encoder reads and what the decoder begins with."""
        given = draft.given
        if ENCODER not in given and DECODER not in given:
            return Prompt(draft.prompt_token_ids, draft.text, given=given), Prompt([])
        for name, is_given in (
            ("prompt", draft.prompt_token_ids or draft.text is not None),
            (FEATURES, FEATURES in given),
        ):
            if is_given:
                raise InvalidRequest(
                    name, f"stands beside {ENCODER} and {DECODER}, where nothing reads it."
                )
        if ENCODER not in given:
            raise InvalidRequest(ENCODER, "is missing; it is what this model's encoder reads.")
        source = self._read(given[ENCODER], True, facts.max_len)
        said = self._read(given[DECODER], False) if DECODER in given else Prompt([])
        for name in sorted({*source.given, *said.given} - ({FEATURES} - said.given.keys())):
            raise InvalidRequest(name, f"cannot stand within {ENCODER} or {DECODER}.")
        return source, said


def token_input(source: Prompt, facts: EncoderFacts) -> EncoderInput:
    """Return token ids as the encoder takes them."""
    token_ids = source.token_ids
    if FEATURES in source.given:
        raise InvalidRequest(FEATURES, "is not read: this model's encoder reads text or token ids.")
    if not token_ids:
        raise InvalidRequest(ENCODER, "is empty; at least one token is needed.")
    if len(token_ids) > facts.max_len:
        raise InvalidRequest(
            ENCODER,
            f"has {len(token_ids)} tokens, but the model's encoder takes {facts.max_len}. Shorten "
            "it, or raise "
            "--max-model-len where the model allows.",
        )
    for token in token_ids:
        if type(token) is not int or not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                ENCODER, f"token id {token!r} is outside the vocabulary of {facts.vocab_size}."
            )
    return EncoderInput(len(token_ids), list(token_ids))


def features_input(source: Prompt, facts: EncoderFacts) -> EncoderInput:
    """Return features as the encoder takes them: of any array of numbers, `facts.shape` large."""
    import numpy as np  # lazy: heavy dependency

    size, frames = facts.shape
    if FEATURES not in source.given:
        raise InvalidRequest(
            ENCODER,
            f"has no {FEATURES!r}: this model's encoder reads features, an array of [{size}, "
            f"{frames}] numbers, not text.",
        )
    if source.token_ids or source.text is not None:
        raise InvalidRequest(
            "prompt", f"stands beside {FEATURES!r}; this model's encoder reads nothing else."
        )
    try:
        array = np.ascontiguousarray(source.given[FEATURES], dtype="<f4")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(FEATURES, f"must be an array of numbers: {error}.") from error
    if array.shape != facts.shape:
        raise InvalidRequest(
            FEATURES,
            f"has the shape {list(array.shape)}; the model takes [{size}, {frames}], one input at "
            "a time, as its "
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
