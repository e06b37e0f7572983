"""Answers of completions and chat completions: ids, options, usage."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from builtin_plugins.routes.common.costs import cost_fields
from builtin_plugins.routes.common.request_ids import MAX_CLIENT_ID, client_id_of
from builtin_plugins.routes.openai.fields import CommonFields
from builtin_plugins.routes.openai.request_metrics import metrics_fields
from core.api import InvalidRequest, RequestOutput


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of the plugin that shape answers."""

    strict_fields: bool = False
    response_role: str = "assistant"
    cached_details: bool = False
    always_usage: bool = False
    tokens_as_ids: bool = False
    trust_chat_template: bool = False
    timing_metrics: bool = False
    draft_metrics: bool = False
    resume_s: float = 0.0
    """Seconds for which streams go on without their client."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> AnswerOptions:
        """Read them from a configuration's plugin options."""
        return cls(
            strict_fields=bool(options.get("strict_fields")),
            response_role=options.get("response_role") or "assistant",
            cached_details=bool(options.get("enable_prompt_tokens_details")),
            always_usage=bool(options.get("enable_force_include_usage")),
            tokens_as_ids=bool(options.get("return_tokens_as_token_ids")),
            trust_chat_template=bool(options.get("trust_request_chat_template")),
            timing_metrics=bool(options.get("enable_per_request_metrics")),
            draft_metrics=options.get("per_request_spec_decode_metrics", "none") != "none",
            resume_s=options.get("stream_resume_timeout") or 0.0,
        )


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Leading fields of every object of one answer."""

    id: str
    object: str
    created: int
    model: str

    def with_choices(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return one answer object or chunk."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


@dataclass(slots=True)
class Usage:
    """Token counts of one HTTP request, over all its prompts and sequences."""

    options: AnswerOptions
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    generated: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of generated tokens, by prompt and sequence."""
    counts: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Counters of features, by prompt."""
    newest: RequestOutput | None = None
    reasoning_tokens: int | None = None
    """Number of generated tokens that are reasoning; None without a reasoning parser."""

    @property
    def completion_tokens(self) -> int:
        """Number of tokens generated so far."""
        return sum(self.generated.values())

    def count(self, prompt: int, output: RequestOutput) -> None:
        """Count the newest output of a prompt."""
        if prompt not in self.prompt_tokens:
            self.prompt_tokens[prompt] = len(output.prompt_token_ids or ())
            self.cached_tokens[prompt] = output.num_cached_tokens or 0
        self.counts[prompt] = output.counts
        self.newest = output
        for completion in output.outputs:
            self.generated[prompt, completion.index] = completion.num_tokens

    def as_json(self) -> dict[str, Any]:
        """Return the `usage` object."""
        prompt = sum(self.prompt_tokens.values())
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            **cost_fields(self._summed_counts()),
        }
        if self.options.cached_details:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(self.cached_tokens.values())}
        details = {}
        if self.reasoning_tokens is not None:
            details["reasoning_tokens"] = self.reasoning_tokens
        drafted = self._total("spec_decode_num_draft_tokens")
        accepted = self._total("spec_decode_num_accepted_tokens")
        if drafted:
            details["accepted_prediction_tokens"] = accepted
            details["rejected_prediction_tokens"] = drafted - accepted
        return usage | ({"completion_tokens_details": details} if details else {})

    def metrics(self) -> dict[str, Any]:
        """Return the field `metrics`, if it is enabled and there is a single sequence."""
        options = self.options
        if self.newest is None or len(self.generated) != 1:
            return {}
        return metrics_fields(
            self.newest, timing=options.timing_metrics, drafts=options.draft_metrics
        )

    def _summed_counts(self) -> Mapping[str, float]:
        """Return the counters of features, over all prompts."""
        total: Counter[str] = Counter()
        for counts in self.counts.values():
            total.update(counts)
        return total

    def _total(self, name: str) -> int:
        return int(sum(counts.get(name, 0.0) for counts in self.counts.values()))


def extension_fields(outputs: Iterable[RequestOutput]) -> dict[str, Any]:
    """Return the KV transfer parameters with which another engine continues an answer.

    Empty unless a KV connector returned some.
    """
    params = (output.kv_transfer_params for output in outputs if output.kv_transfer_params)
    found = next(params, None)
    return {} if found is None else {"kv_transfer_params": found}


def answer_id(request: Request, fields: CommonFields, prefix: str) -> str:
    """Return the id of an answer: the client's own, or a random one."""
    given = fields.request_id or client_id_of(request.headers)
    if fields.request_id and not fields.request_id.isprintable():
        raise InvalidRequest("request_id", "must be printable.")
    usable = given and len(given) <= MAX_CLIENT_ID and given.isprintable()
    return f"{prefix}-{given if usable else secrets.token_hex(16)}"


def usage_options(fields: CommonFields, options: AnswerOptions) -> tuple[bool, bool]:
    """Return whether the stream's end, and whether every chunk, includes the usage."""
    stream_options = fields.stream_options
    if stream_options is None:
        return options.always_usage, False
    final = options.always_usage or stream_options.include_usage
    return final, final and stream_options.continuous_usage_stats


def check_beam_fields(fields: CommonFields) -> None:
    """Raise `InvalidRequest` for beam search fields without `use_beam_search`."""
    if fields.length_penalty != 1 and not fields.use_beam_search:
        raise InvalidRequest(
            "length_penalty", "belongs to beam search; set `use_beam_search` as well."
        )


def check_stream_options(fields: CommonFields) -> None:
    """Raise `InvalidRequest` for stream options without a stream."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest(
            "stream_options", "belongs to streams; set `stream` to true or leave it out."
        )
