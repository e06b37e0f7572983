"""What users of the Python API touch: sampling parameters, prompts and outputs, field-compatible with vLLM.

The catalogue of request fields is here, once: each field's type and bounds are in its annotation; validation,
the HTTP schema, the docs table and the fuzzers read the same annotations.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, TypedDict

import msgspec

from core.errors import InvalidRequest, did_you_mean
from core.structured import StructuredOutputsParams

MAX_N = 64
"""Sequences one request may ask for; the cost of a request is bounded before it is fanned out."""
MAX_INT = 2**31 - 1
"""Counts beyond this are mistakes, and would overflow on devices."""
MAX_STOP = 64
MAX_BAD_WORDS = 128
MAX_LISTED_TOKENS = 100_000
MAX_ITEM_CHARS = 1024
"""Longest stop text or bad word: each is looked for again with every token."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits of one request field, and what it means in a sentence."""

    doc: str
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    """True: the value must be greater than `low`, not equal to it."""
    max_items: int | None = None


class RequestOutputKind(IntEnum):
    """What each `RequestOutput` of a stream holds."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, dict=False):
    """How to choose tokens for one request; names, defaults and meanings as in vLLM.

    Raises `InvalidRequest` (a ValueError) naming the field when a value is outside its limits. Limits that
    depend on the model (vocabulary, context length) are checked at admission.
    """

    n: Annotated[int, Bound("Sequences to generate for the prompt.", 1, MAX_N)] = 1
    presence_penalty: Annotated[float, Bound("Subtracted once from tokens already generated.", -2, 2)] = 0.0
    frequency_penalty: Annotated[float, Bound("Subtracted per occurrence among generated tokens.", -2, 2)] = 0.0
    repetition_penalty: Annotated[
        float, Bound("Divides (positive) or multiplies (negative) logits of tokens seen so far.", 0, 100, True)
    ] = 1.0
    temperature: Annotated[float, Bound("Randomness; 0 is greedy.", 0, 1e4)] = 1.0
    top_p: Annotated[float, Bound("Keep the smallest set of tokens with this total probability.", 0, 1, True)] = 1.0
    top_k: Annotated[int, Bound("Keep this many best tokens; 0 or -1 keeps all.", -1, MAX_INT)] = 0
    min_p: Annotated[float, Bound("Drop tokens below this fraction of the best probability.", 0, 1)] = 0.0
    seed: Annotated[int | None, Bound("Same seed, same tokens, whatever else runs.", -(2**63), 2**63 - 1)] = None
    stop: Annotated[list[str], Bound("Texts that end the output.", max_items=MAX_STOP)] = []
    stop_token_ids: Annotated[list[int], Bound("Tokens that end the output.", 0, max_items=MAX_LISTED_TOKENS)] = []
    ignore_eos: Annotated[bool, Bound("Go on after the end-of-sequence token.")] = False
    max_tokens: Annotated[int | None, Bound("Most tokens to generate; null: up to the context length.", 1, MAX_INT)] = (
        16
    )
    min_tokens: Annotated[int, Bound("No end-of-sequence or stop token before this many tokens.", 0, MAX_INT)] = 0
    logprobs: Annotated[int | None, Bound("Log-probabilities of this many best tokens; -1 for all.", -1, MAX_INT)] = (
        None
    )
    prompt_logprobs: Annotated[int | None, Bound("The same for each prompt token.", -1, MAX_INT)] = None
    detokenize: Annotated[bool, Bound("Produce text; stop texts need it.")] = True
    skip_special_tokens: Annotated[bool, Bound("Leave special tokens out of the text.")] = True
    spaces_between_special_tokens: Annotated[bool, Bound("Put spaces between special tokens in the text.")] = True
    include_stop_str_in_output: Annotated[bool, Bound("Keep the stop text at the end of the output.")] = False
    truncate_prompt_tokens: Annotated[
        int | None, Bound("Keep only the last so many prompt tokens; -1: as many as fit.", -1, MAX_INT)
    ] = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Annotated[
        dict[int, float] | None, Bound("Added to the logits of tokens, each in [-100, 100].", -100, 100, max_items=1024)
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, Bound("Only these tokens may be generated.", 0, max_items=MAX_LISTED_TOKENS)
    ] = None
    bad_words: Annotated[list[str], Bound("Texts never generated.", max_items=MAX_BAD_WORDS)] = []
    bad_words_token_ids: list[list[int]] = []
    """Filled at admission from `bad_words` by the model's tokenizer; not a request field."""
    extra_args: dict[str, Any] | None = None
    """Arguments of plugins, by the names they declare."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form the output must have."""
    skip_reading_prefix_cache: Annotated[bool, Bound("Compute the whole prompt again.")] = False

    def __post_init__(self) -> None:
        stop: Any = self.stop  # a single text is accepted too, and becomes a list
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
            raise InvalidRequest("extra_args", f"must map names to values, not {self.extra_args!r}.")
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError as error:
            raise InvalidRequest("output_kind", f"must be a RequestOutputKind, not {self.output_kind!r}.") from error
        if not self.detokenize and self.stop:
            raise InvalidRequest("stop", "stop texts need detokenize=True; give stop_token_ids instead.")
        if "" in self.stop:
            raise InvalidRequest("stop", "an empty text would end every output; remove it.")
        if "" in self.bad_words:
            raise InvalidRequest("bad_words", "an empty text can never be avoided; remove it.")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids", "the list is empty, so no token could be generated.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", f"{self.min_tokens} is more than max_tokens {self.max_tokens}; lower it."
            )

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Build from keywords of which some are None; None means the default."""
        unknown = sorted(set(values) - set(cls.__struct_fields__))
        if unknown:
            hint = did_you_mean(unknown[0], cls.__struct_fields__)
            raise InvalidRequest(unknown[0], f"not a sampling parameter{hint}")
        optional = {"max_tokens"}
        return cls(**{k: v for k, v in values.items() if v is not None or k in optional})

    def clone(self, **changes: Any) -> SamplingParams:
        """Return a copy with some fields changed, validated again."""
        return msgspec.structs.replace(self, **changes)


class _Check(typing.Protocol):
    def __call__(self, name: str, value: Any) -> None: ...


def _number_check(bound: Bound, integer: bool, optional: bool) -> _Check:
    wanted = "an integer" if integer else "a finite number"

    def check(name: str, value: Any) -> None:
        if value is None and optional:
            return
        good = isinstance(value, int) if integer else isinstance(value, (int, float))
        if not good or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidRequest(name, f"must be {wanted}, not {value!r}.")
        low, high = bound.low, bound.high
        if low is not None and (value <= low if bound.low_open else value < low):
            relation = "greater than" if bound.low_open else "at least"
            raise InvalidRequest(name, f"must be {relation} {low}, not {value}.")
        if high is not None and value > high:
            raise InvalidRequest(name, f"must be at most {high}, not {value}.")

    return check


def _items_check(bound: Bound, item: type, optional: bool) -> _Check:
    check_item = _number_check(bound, integer=True, optional=False)

    def check(name: str, value: Any) -> None:
        if value is None and optional:
            return
        if not isinstance(value, (list, tuple)):
            raise InvalidRequest(name, f"must be a list, not {value!r}.")
        if bound.max_items is not None and len(value) > bound.max_items:
            raise InvalidRequest(name, f"holds {len(value)} items, at most {bound.max_items} are allowed.")
        for element in value:
            if item is int:
                check_item(name, element)
            elif not isinstance(element, str):
                raise InvalidRequest(name, f"must hold texts, not {element!r}.")
            elif len(element) > MAX_ITEM_CHARS:
                raise InvalidRequest(name, f"holds {len(element)} characters in one text, at most {MAX_ITEM_CHARS}.")

    return check


def _bias_check(bound: Bound) -> _Check:
    check_value = _number_check(bound, integer=False, optional=False)

    def check(name: str, value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, Mapping):
            raise InvalidRequest(name, f"must map token ids to numbers, not {value!r}.")
        if bound.max_items is not None and len(value) > bound.max_items:
            raise InvalidRequest(name, f"holds {len(value)} items, at most {bound.max_items} are allowed.")
        for token, number in value.items():
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise InvalidRequest(name, f"token ids must be integers from 0, not {token!r}.")
            check_value(name, number)

    return check


def _flag_check(optional: bool) -> _Check:
    def check(name: str, value: Any) -> None:
        if not (isinstance(value, bool) or (value is None and optional)):
            raise InvalidRequest(name, f"must be true or false, not {value!r}.")

    return check


def make_checks(catalogue: type) -> tuple[tuple[str, _Check], ...]:
    """Return one check for each annotated field of a struct of request parameters."""
    checks: list[tuple[str, _Check]] = []
    for name, hint in typing.get_type_hints(catalogue, include_extras=True).items():
        bound = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Bound)), None)
        if bound is None:
            continue
        inner = typing.get_args(hint)[0]
        parts = [a for a in typing.get_args(inner) if a is not type(None)] if _is_union(inner) else [inner]
        kind, optional = parts[0], len(parts) < len(typing.get_args(inner) or (inner,))
        origin = typing.get_origin(kind)
        if kind is bool:
            checks.append((name, _flag_check(optional)))
        elif kind in (int, float):
            checks.append((name, _number_check(bound, kind is int, optional)))
        elif origin is list:
            checks.append((name, _items_check(bound, typing.get_args(kind)[0], optional)))
        else:
            checks.append((name, _bias_check(bound)))
    return tuple(checks)


def _is_union(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


_CHECKS = make_checks(SamplingParams)


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
    """Both prompts of a model with an encoder; without the decoder's, it begins with what the model says."""

    encoder_prompt: str | list[int] | TextPrompt | TokensPrompt | FeaturesPrompt
    decoder_prompt: str | list[int] | TextPrompt | TokensPrompt | None


PromptType = str | list[int] | TextPrompt | TokensPrompt | FeaturesPrompt | ExplicitEncoderDecoderPrompt


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id to `Logprob`: the chosen token and the best ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    num_tokens: int = 0
    """Tokens generated so far, also where `token_ids` holds only the newest."""
    special_spans: Sequence[tuple[int, int]] = ()
    """Where in `text` special tokens are spelled; empty where they are skipped."""

    def finished(self) -> bool:
        """Say whether this sequence has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of the engine's clock."""

    arrival_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """What a request has produced so far (or in the end); fields as in vLLM."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: Any = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: str | None = field(default=None)
    """Why the request failed inside the engine, where it did (finish_reason "error")."""
    pooled: Any = None
    """What a pooling model made of the prompt (`core.pooling_types.Pooled`)."""
