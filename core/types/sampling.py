"""`SamplingParams`: the sampling fields of a request, compatible with vLLM.

A field's annotation holds its type and bounds. Validation, the HTTP schema, the docs
table and the fuzzers read the annotations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any

import msgspec

from core.errors import InvalidRequest, did_you_mean
from core.types.bounds import (
    MAX_BAD_WORDS,
    MAX_INT,
    MAX_LISTED_TOKENS,
    MAX_N,
    MAX_STOP,
    Bound,
    make_checks,
)
from core.types.structured import StructuredOutputsParams


class RequestOutputKind(IntEnum):
    """Content of each `RequestOutput` of a stream."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, dict=False):
    """Sampling parameters of a request; names, defaults and meanings as in vLLM.

    Raises `InvalidRequest` (a ValueError) naming a field outside its limits. Limits that depend on
    the model (vocabulary, context length) are checked at admission.
    """

    n: Annotated[int, Bound("Sequences to generate for the prompt.", 1, MAX_N)] = 1
    presence_penalty: Annotated[
        float, Bound("Subtracted once from tokens already generated.", -2, 2)
    ] = 0.0
    frequency_penalty: Annotated[
        float, Bound("Subtracted per occurrence among generated tokens.", -2, 2)
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Bound(
            "Divides (positive) or multiplies (negative) logits of tokens seen so far.",
            0,
            100,
            True,
        ),
    ] = 1.0
    temperature: Annotated[float, Bound("Randomness; 0 is greedy.", 0, 1e4)] = 1.0
    top_p: Annotated[
        float, Bound("Keep the smallest set of tokens with this total probability.", 0, 1, True)
    ] = 1.0
    top_k: Annotated[
        int, Bound("Keep this many most likely tokens; 0 or -1 keeps all.", -1, MAX_INT)
    ] = 0
    min_p: Annotated[
        float, Bound("Drop tokens below this fraction of the best probability.", 0, 1)
    ] = 0.0
    seed: Annotated[
        int | None, Bound("Same seed, same tokens, whatever else runs.", -(2**63), 2**63 - 1)
    ] = None
    stop: Annotated[
        list[str], Bound("Stop strings, which end the output.", max_items=MAX_STOP)
    ] = []
    stop_token_ids: Annotated[
        list[int], Bound("Tokens that end the output.", 0, max_items=MAX_LISTED_TOKENS)
    ] = []
    ignore_eos: Annotated[bool, Bound("Go on after the end-of-sequence token.")] = False
    max_tokens: Annotated[
        int | None, Bound("Maximum tokens to generate; null: up to the context length.", 1, MAX_INT)
    ] = 16
    min_tokens: Annotated[
        int, Bound("No end-of-sequence or stop token before this many tokens.", 0, MAX_INT)
    ] = 0
    logprobs: Annotated[
        int | None,
        Bound("Log-probabilities of this many most likely tokens; -1 for all.", -1, MAX_INT),
    ] = None
    prompt_logprobs: Annotated[
        int | None, Bound("The same for each prompt token.", -1, MAX_INT)
    ] = None
    detokenize: Annotated[bool, Bound("Produce text; stop strings need it.")] = True
    skip_special_tokens: Annotated[bool, Bound("Leave special tokens out of the text.")] = True
    spaces_between_special_tokens: Annotated[
        bool, Bound("Put spaces between special tokens in the text.")
    ] = True
    include_stop_str_in_output: Annotated[
        bool, Bound("Keep the stop string at the end of the output.")
    ] = False
    truncate_prompt_tokens: Annotated[
        int | None,
        Bound("Keep only this many last prompt tokens; -1: as many as fit.", -1, MAX_INT),
    ] = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Annotated[
        dict[int, float] | None,
        Bound("Added to the logits of tokens, each in [-100, 100].", -100, 100, max_items=1024),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None,
        Bound("Only these tokens may be generated.", 0, max_items=MAX_LISTED_TOKENS),
    ] = None
    bad_words: Annotated[list[str], Bound("Texts never generated.", max_items=MAX_BAD_WORDS)] = []
    bad_words_token_ids: list[list[int]] = []
    """Token ids of `bad_words`; set at admission, not a request field."""
    extra_args: dict[str, Any] | None = None
    """Arguments of plugins, by declared name."""
    structured_outputs: StructuredOutputsParams | None = None
    """Constraint on the output's form."""
    skip_reading_prefix_cache: Annotated[bool, Bound("Compute the whole prompt again.")] = False

    def __post_init__(self) -> None:
        stop: Any = self.stop  # a single string becomes a list
        if isinstance(stop, str):
            self.stop = [stop]
        for name in ("stop", "stop_token_ids", "bad_words"):
            if getattr(self, name) is None:
                setattr(self, name, [])
        for name, check in _CHECKS:
            check(name, getattr(self, name))
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise InvalidRequest("structured_outputs", "must be StructuredOutputsParams.")
        if self.extra_args is not None and not isinstance(self.extra_args, dict):
            raise InvalidRequest(
                "extra_args", f"must map names to values, not {self.extra_args!r}."
            )
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError as error:
            raise InvalidRequest(
                "output_kind", f"must be a RequestOutputKind, not {self.output_kind!r}."
            ) from error
        if not self.detokenize and self.stop:
            raise InvalidRequest(
                "stop", "stop strings need detokenize=True; give stop_token_ids instead."
            )
        if "" in self.stop:
            raise InvalidRequest("stop", "an empty text would end every output; remove it.")
        if "" in self.bad_words:
            raise InvalidRequest("bad_words", "an empty text can never be avoided; remove it.")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest(
                "allowed_token_ids", "the list is empty, so no token could be generated."
            )
        if (
            self.min_tokens
            and self.allowed_token_ids
            and set(self.allowed_token_ids) <= set(self.stop_token_ids)
        ):
            raise InvalidRequest(
                "allowed_token_ids",
                f"all of them are stop tokens, which are excluded before min_tokens "
                f"{self.min_tokens}; allow others.",
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens",
                f"{self.min_tokens} is more than max_tokens {self.max_tokens}; lower it.",
            )

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Build from keywords; None means the default."""
        unknown = sorted(set(values) - set(cls.__struct_fields__))
        if unknown:
            hint = did_you_mean(unknown[0], cls.__struct_fields__)
            raise InvalidRequest(unknown[0], f"not a sampling parameter{hint}")
        optional = {"max_tokens"}
        return cls(**{k: v for k, v in values.items() if v is not None or k in optional})

    def clone(self, **changes: Any) -> SamplingParams:
        """Return a copy with some fields changed, validated again."""
        return msgspec.structs.replace(self, **changes)


_CHECKS = make_checks(SamplingParams)


def require_sampling_params(params: object) -> SamplingParams:
    """Return `params` if they are sampling parameters. Raises `InvalidRequest` otherwise."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequest("sampling_params", f"must be SamplingParams, not {params!r:.200}.")
    return params
