"""What completions and chat completions have in common: ids, options, usage."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from builtin_plugins.routes.openai.fields import CommonFields
from core.api import InvalidRequest, RequestOutput


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The plugin's options, read once."""

    strict_fields: bool = False
    response_role: str = "assistant"
    cached_details: bool = False
    always_usage: bool = False
    tokens_as_ids: bool = False
    trust_chat_template: bool = False

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
        )


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What stands at the top of every object of one answer."""

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
    """Counts tokens of one HTTP request, over all its prompts and sequences."""

    with_cached: bool
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    completion_tokens: int = 0
    counts: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """What features counted, by prompt."""

    def count(self, prompt: int, output: RequestOutput) -> None:
        """Take an output that says what is new."""
        self.prompt_tokens[prompt] = len(output.prompt_token_ids or ())
        self.cached_tokens[prompt] = output.num_cached_tokens or 0
        self.counts[prompt] = output.counts
        for completion in output.outputs:
            self.completion_tokens += len(completion.token_ids)

    def as_json(self) -> dict[str, Any]:
        """Return the `usage` object."""
        prompt = sum(self.prompt_tokens.values())
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
        }
        if self.with_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(self.cached_tokens.values())}
        guessed, right = self._counted("spec_decode_num_draft_tokens"), self._counted("spec_decode_num_accepted_tokens")
        if guessed:
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": right,
                "rejected_prediction_tokens": guessed - right,
            }
        return usage

    def _counted(self, name: str) -> int:
        return int(sum(counts.get(name, 0.0) for counts in self.counts.values()))


def answer_id(request: Request, fields: CommonFields, prefix: str) -> str:
    """Return the id of an answer: the client's own, where it gave one, else a new one."""
    given = fields.request_id or request.headers.get("x-request-id", "")
    if fields.request_id and not fields.request_id.isprintable():
        raise InvalidRequest("request_id", "must be printable.")
    usable = given and len(given) <= 200 and given.isprintable()
    return f"{prefix}-{given if usable else secrets.token_hex(16)}"


def shows_usage(fields: CommonFields, options: AnswerOptions) -> tuple[bool, bool]:
    """Say whether a stream ends with its usage, and whether every chunk tells it."""
    asked = fields.stream_options
    final = options.always_usage or (asked is not None and asked.include_usage)
    return final, final and asked is not None and asked.continuous_usage_stats


def check_beams(fields: CommonFields) -> None:
    """Raise `InvalidRequest` for a part of a beam search that is not asked for."""
    if fields.length_penalty != 1 and not fields.use_beam_search:
        raise InvalidRequest("length_penalty", "belongs to beam search; set `use_beam_search` as well.")


def check_stream_options(fields: CommonFields) -> None:
    """Raise `InvalidRequest` for stream options without a stream."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options", "belongs to streams; set `stream` to true or leave it out.")
