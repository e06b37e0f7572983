"""Reasoning and tool calls in chat answers: which formats are read, and the messages that come of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from builtin_plugins.routes.openai.fields import ChatFields
from builtin_plugins.routes.openai.tools import check_tools, forced_form, forced_format
from core.api import (
    CallStats,
    CompletionOutput,
    ConfigError,
    InvalidRequest,
    OutputParser,
    ParseRequest,
    ReasoningFormat,
    SamplingParams,
    ToolFormat,
    known_formats,
    suggest,
)

log = logging.getLogger(__name__)
PROMPT_END_CHARS = 200
"""As much of the prompt's end is looked at to see whether it opens the reasoning."""


@dataclass(frozen=True, slots=True)
class Formats:
    """What the server was started to read."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    auto: bool = False
    """Tools may be called where the model decides."""
    hide_unchosen: bool = False
    """Tools are not shown to the model under `tool_choice` none."""
    suggestion: str = ""
    """Flags to read tool calls with, where the server has none and the chat template tells."""
    special: Mapping[str, int] = field(default_factory=dict)
    """The tokenizer's special tokens by text."""
    count: Callable[[CallStats], None] = lambda stats: None
    """Takes the numbers of the calls in answers."""

    @classmethod
    def from_engine(cls, engine: Any, options: Mapping[str, Any]) -> Formats:
        """Load the chosen formats. Raises `ConfigError` for unknown names."""

        def load(kind: str, name: str | None) -> Any:
            return engine.registry.load(engine.registry.choose(kind, name)) if name else None

        tokenizer, parser = engine.tokenizer, options.get("tool_call_parser")
        suggestion = "" if parser else suggested_flags(getattr(tokenizer, "chat_template", None), engine.registry)
        if options.get("enable_auto_tool_choice") and not parser:
            hint = f"; the chat template suggests {suggestion}" if suggestion else ""
            raise ConfigError(
                f"--enable-auto-tool-choice needs --tool-call-parser NAME, which says how the model writes calls{hint}."
            )
        if suggestion:
            log.info("The chat template takes tools; %s let the model decide to call them.", suggestion)
        return cls(
            tools=load("tool_parsers", parser),
            reasoning=load("reasoning_parsers", options.get("reasoning_parser")),
            auto=bool(options.get("enable_auto_tool_choice")),
            hide_unchosen=bool(options.get("exclude_tools_when_tool_choice_none")),
            suggestion=suggestion,
            special={tokenizer.decode([token]): token for token in tokenizer.special_ids} if tokenizer else {},
            count=engine.sinks.calls,
        )

    def check(self, fields: ChatFields) -> None:
        """Raise `InvalidRequest` for tools that cannot be called here."""
        check_tools(fields.tools, fields.tool_choice)
        if fields.tools and fields.tool_choice in (None, "auto") and not (self.auto and self.tools):
            hint = f"; the chat template suggests {self.suggestion}" if self.suggestion else ""
            raise InvalidRequest(
                "tool_choice",
                "'auto', the default with `tools`, needs a server started with --enable-auto-tool-choice and "
                f"--tool-call-parser; set it to 'none', 'required' or a function, or restart the server with both{hint}.",
            )

    def shown_tools(self, fields: ChatFields) -> list[dict[str, Any]] | None:
        """Return the tools that stand in the prompt."""
        return None if fields.tool_choice == "none" and self.hide_unchosen else fields.tools or None

    def constraint(self, fields: ChatFields, others: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sampling parameters that hold an answer to the choice of tools; none where nothing is forced."""
        form = forced_form(
            fields.tools, fields.tool_choice, self.tools, self.special, parallel=fields.parallel_tool_calls
        )
        if form is None:
            return {}
        for name in ("response_format", "structured_outputs"):
            if others.get(name) not in (None, {}, {"type": "text"}):
                raise InvalidRequest(name, "gives the answer a form, and so does a forced tool call; leave one out.")
        return {"structured_outputs": form}

    def budget(self, fields: ChatFields) -> dict[str, Any]:
        """Return the arguments that end thoughts in time; none without a budget."""
        if fields.thinking_token_budget is None:
            return {}
        form = self.reasoning
        if form is None or not form.ends:
            raise InvalidRequest("thinking_token_budget", "needs a server started with the model's --reasoning-parser.")
        return {
            "thinking_token_budget": fields.thinking_token_budget,
            "thinking_starts": [*form.starts],
            "thinking_end": form.closes or form.ends[0],
        }

    def reader(self, fields: ChatFields, prompt: str) -> AnswerReader | None:
        """Return how the answer to a request is read; None where it is shown as it comes."""
        tools = None
        if fields.tools and fields.tool_choice in (None, "auto"):
            tools = self.tools
        elif fields.tools and fields.tool_choice != "none":
            tools = forced_format(fields.tool_choice, self.tools)
        if tools is None and self.reasoning is None:
            return None
        end = prompt[-PROMPT_END_CHARS:]
        request = ParseRequest(fields.tools, fields.chat_template_kwargs, end, whole=not fields.stream)
        return AnswerReader(request, tools, self.reasoning, fields, frozenset(self.special), self.count)


def suggested_flags(template: str | Mapping[str, str] | None, registry: Any) -> str:
    """Return the flags for a chat template that takes tools and shows how calls are written; empty for others."""
    text = "\n".join(template.values()) if isinstance(template, Mapping) else template or ""
    if "tools" not in text or registry is None:
        return ""
    tools, reasoning = suggest(
        text, known_formats(registry, "tool_parsers"), known_formats(registry, "reasoning_parsers")
    )
    flags = f"--enable-auto-tool-choice --tool-call-parser {tools}"
    return "" if tools is None else f"{flags} --reasoning-parser {reasoning}" if reasoning else flags


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Formats of one request."""

    request: ParseRequest
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    fields: ChatFields
    special: frozenset[str]
    count: Callable[[CallStats], None]

    def sampling(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with which the formats see their special tokens."""
        return params.clone(skip_special_tokens=False)

    def begin(self, params: SamplingParams) -> ParsedChoice:
        """Return the parser of one choice; `params` are those the client asked for."""
        parser = OutputParser(
            self.request,
            tools=self.tools,
            reasoning=self.reasoning,
            special=self.special,
            show_special=not params.skip_special_tokens,
        )
        return ParsedChoice(parser, self.fields, self.count)


class ParsedChoice:
    """One choice of an answer, as it is read."""

    def __init__(self, parser: OutputParser, fields: ChatFields, count: Callable[[CallStats], None]) -> None:
        self._parser = parser
        self._tools = {tool.get("function", tool).get("name") for tool in fields.tools}
        self._count = count
        self._with_reasoning = fields.include_reasoning
        self._most_calls = None if fields.parallel_tool_calls else 1
        self._num_calls = 0

    def take(self, completion: CompletionOutput) -> dict[str, Any]:
        """Return the fields of the message, or of a chunk's delta, that some output brings."""
        deltas = [self._parser.feed(completion.text, completion.special_spans)]
        if completion.finish_reason is not None:
            deltas.append(self._parser.finish())
        content = "".join(delta.content for delta in deltas)
        reasoning = "".join(delta.reasoning for delta in deltas)
        calls = [call for delta in deltas for call in delta.calls]
        if self._most_calls is not None:
            calls = calls[: max(0, self._most_calls - self._num_calls)]
        message: dict[str, Any] = {}
        if content:
            message["content"] = content
        if reasoning and self._with_reasoning:
            message |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if calls:
            known = sum(call.name in self._tools for call in calls)
            self._count(CallStats(known, len(calls) - known))
            message["tool_calls"] = [
                {
                    "index": self._num_calls + i,
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for i, call in enumerate(calls)
            ]
        self._num_calls += len(calls)
        return message

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Return why the choice ended, as OpenAI says it."""
        return "tool_calls" if completion.finish_reason == "stop" and self._num_calls else completion.finish_reason
