"""Bodies of the OpenAI requests, without sampling parameters: `SamplingParams` defines those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request

from builtin_plugins.routes.common.fields import (
    SAMPLING_FIELDS,
    EngineFields,
    ShortString,
    feature_fields,
)
from core.api import InvalidRequest
from core.api.features import KnownNames

MAX_PROMPTS: Final = 1024
"""Largest number of prompts in one completions request."""
MAX_SEQUENCES: Final = 1024
"""Largest number of sequences in one request: prompts times `n`, or times `best_of`."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """Contents of a stream in addition to its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class CommonFields(EngineFields, kw_only=True):
    """Fields of completions and of chat completions."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    request_id: ShortString | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool | None = None
    use_beam_search: bool = False
    """Whether a beam search over `n` beams finds the `n` answers."""
    length_penalty: float = 1.0
    """Exponent of the answer length by which the beam search divides the log-probability."""


class CompletionFields(CommonFields, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[Any] | None = None
    prompt_embeds: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """One or more prompts as embeddings; their answers come first."""
    best_of: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    """Number of generated sequences; the `n` likeliest are the answer."""
    add_special_tokens: bool = True


class ChatFields(CommonFields, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool | None = None
    """Default: true, unless the final message is continued."""
    continue_final_message: bool = False
    add_special_tokens: bool = False
    thinking_token_budget: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    """Largest number of reasoning tokens before the answer is forced to start."""
    reasoning_effort: ShortString | None = None
    """Argument of the chat template; `none` switches reasoning off."""
    documents: list[dict[str, Any]] = []
    """Documents for chat templates that show them."""


WITHOUT_EFFECT: Final = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
"""OpenAI's fields that are accepted and ignored."""

_GUIDED = "was removed; use `structured_outputs` with `{}`"
_MEDIA = "is not served: this engine takes text and images, and gives text"
UNSERVED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "audio": ((), _MEDIA),
    "best_of": ((1,), "belongs to completions; ask for `n` answers and choose among them"),
    "function_call": (("none",), "is OpenAI's former name; use `tools` and `tool_choice`"),
    "functions": (([],), "is OpenAI's former name; use `tools`"),
    "guided_choice": ((), _GUIDED.format("choice")),
    "guided_decoding_backend": ((), "was removed; the server chooses the backend"),
    "guided_grammar": ((), _GUIDED.format("grammar")),
    "guided_json": ((), _GUIDED.format("json")),
    "guided_regex": ((), _GUIDED.format("regex")),
    "guided_whitespace_pattern": ((), _GUIDED.format("whitespace_pattern")),
    "kv_transfer_params": (
        ({},),
        "is for engines that send each other blocks: start them with a connector that does, such "
        "as tcp",
    ),
    "logits_processors": (
        ([],),
        "is not served: a request may name no code; load a logits-processor plugin",
    ),
    "mm_processor_kwargs": (
        ({},),
        "is set by the server (--mm-processor-kwargs), or with --trust-request-mm-kwargs by "
        "requests",
    ),
    "modalities": ((["text"],), _MEDIA),
    "moderation": ((), "is not served"),
    "prediction": ((), "is not served"),
    "prompt_embeds": ((), "is for completions; send messages"),
    "structural_tag": ((), _GUIDED.format("structural_tag")),
    "suffix": (("",), "is not served"),
    "web_search_options": ((), "is not served"),
}
"""Known fields that are not served: values without effect, and the error for any other value."""

OTHER_FIELDS: Final = frozenset(
    (*SAMPLING_FIELDS, "response_format", "structured_outputs", *WITHOUT_EFFECT, *UNSERVED)
)


def read_others(others: Mapping[str, Any], names: KnownNames, request: Request) -> dict[str, Any]:
    """Return the fields that features read. Raises `InvalidRequest` for unserved fields."""
    for name, value in others.items():
        neutral, missing = UNSERVED.get(name, ((value,), ""))
        if name not in names.read and value not in neutral:
            raise InvalidRequest(name, f"{missing}.")
    return feature_fields(others, names, request)
