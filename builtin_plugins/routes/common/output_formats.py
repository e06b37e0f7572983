"""Output formats of reasoning and tool calls, and their effect on each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

import msgspec

from builtin_plugins.output_parsers.api import (
    REASONING_BOUNDS,
    Broken,
    OutputParser,
    OutputReader,
    ParseRequest,
    Reading,
    ReasoningBounds,
    ReasoningFormat,
    ToolFormat,
    fit_format,
    known_formats,
    suggest_parsers,
)
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.sampling import structured_outputs
from builtin_plugins.routes.common.thinking import ThinkingChoice, ThinkingSettings
from builtin_plugins.routes.common.tools import (
    check_tools,
    forced_call_constraint,
    forced_call_format,
    form_or_calls,
    form_or_calls_format,
)
from core.api import ConfigError, InvalidRequest, Registry, SamplingParams
from core.api.serving import ChatRenderer, ServedEngine
from core.api.telemetry import CallStats

_OPTIONS: Final = (
    "default_chat_template_kwargs",
    "enable_auto_tool_choice",
    "exclude_tools_when_tool_choice_none",
    "reasoning_effort_map",
    "reasoning_parser",
    "tool_call_parser",
)
PROMPT_END_CHARS: Final = 200
"""Characters at the end of the prompt in which parsers look for the start of reasoning."""


@dataclass(frozen=True, slots=True)
class OutputFormats:
    """Formats of reasoning and tool calls that the server parses."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    auto: bool = False
    """Whether the model may decide to call tools."""
    hide_tools_when_none: bool = False
    """Whether prompts omit the tools if `tool_choice` is none."""
    suggestion: str = ""
    """Flags that the chat template suggests; empty if a tool parser is set."""
    special: Mapping[str, int] = field(default_factory=dict)
    """Ids of the tokenizer's special tokens, by text."""
    count: Callable[[CallStats], None] = lambda stats: None
    """Receives the number of calls in each answer."""
    has_budgets: bool = False
    """Whether the engine has the logits processor of thinking budgets."""
    thinking: ThinkingSettings = field(default_factory=ThinkingSettings)
    """Defaults of reasoning."""

    @classmethod
    def shared(cls, engine: ServedEngine, options: Mapping[str, Any]) -> OutputFormats:
        """Return the formats of an engine, shared by all route groups with the same options."""
        chosen = {name: options.get(name) for name in _OPTIONS}
        made: OutputFormats = engine.registry.shared(
            f"formats {chosen}", lambda: cls.from_engine(engine, chosen)
        )
        return made

    @classmethod
    def from_engine(cls, engine: ServedEngine, options: Mapping[str, Any]) -> OutputFormats:
        """Load the selected formats.

        Raises `ConfigError` for unknown names and unsupported chat templates.
        """

        def load(kind: str, name: str | None) -> Any:
            if not name:
                return None
            registered = engine.registry.choose(kind, name)
            form = fit_format(
                engine.registry.load(registered), getattr(tokenizer, "response_template", None)
            )
            return replace(form, read=_with_blame(engine.registry.blame(registered), form.read))

        tokenizer = engine.tokenizer
        parser = options.get("tool_call_parser")
        suggestion = ""
        if not parser:
            template = getattr(tokenizer, "chat_template", None)
            suggestion = suggested_flags(template, engine.registry)
        special = {}
        if tokenizer:
            special = {tokenizer.decode([token]): token for token in tokenizer.special_ids}
        if options.get("enable_auto_tool_choice") and not parser:
            hint = f"; the chat template suggests {suggestion}" if suggestion else ""
            raise ConfigError(
                "--enable-auto-tool-choice needs --tool-call-parser NAME, "
                f"which says how the model writes calls{hint}."
            )
        reasoning = load("reasoning_parsers", options.get("reasoning_parser"))
        processors = engine.registry.entries("logits_processors")
        has_budgets = any(found.entry.name == "thinking_budget" for found in processors)
        return cls(
            tools=load("tool_parsers", parser),
            reasoning=reasoning,
            auto=bool(options.get("enable_auto_tool_choice")),
            thinking=ThinkingSettings.from_options(
                options, can_end=has_budgets and reasoning is not None and bool(reasoning.ends)
            ),
            hide_tools_when_none=bool(options.get("exclude_tools_when_tool_choice_none")),
            suggestion=suggestion,
            special=special,
            count=engine.sinks.record,
            has_budgets=has_budgets,
        )

    def check(self, conversation: Conversation) -> None:
        """Raise `InvalidRequest` for invalid tools, or tools the server cannot parse calls of."""
        check_tools(conversation.tools, conversation.tool_choice)
        is_auto = conversation.tools and conversation.tool_choice in (None, "auto")
        if is_auto and not (self.auto and self.tools):
            hint = f"; the chat template suggests {self.suggestion}" if self.suggestion else ""
            raise InvalidRequest(
                "tool_choice",
                "'auto', the default with `tools`, needs a server started with "
                "--enable-auto-tool-choice and --tool-call-parser; set it to 'none', 'required' "
                f"or a function, or restart the server with both{hint}.",
            )

    def prompt_tools(self, conversation: Conversation) -> list[dict[str, Any]] | None:
        """Return the tools that the prompt shows."""
        if conversation.tool_choice == "none" and self.hide_tools_when_none:
            return None
        return conversation.tools or None

    def constraint(self, conversation: Conversation) -> dict[str, Any]:
        """Return the sampling parameters of a forced call, or of a form next to free calls."""
        form = forced_call_constraint(
            conversation.tools
            if conversation.enforced_tools is None
            else conversation.enforced_tools,
            conversation.tool_choice,
            self.tools,
            self.special,
            parallel=conversation.parallel_tool_calls,
        )
        if form is None:
            return self._form_or_calls(conversation)
        for name in ("response_format", "structured_outputs"):
            if conversation.sampling.get(name) not in (None, {}, {"type": "text"}):
                raise InvalidRequest(
                    name, "gives the answer a form, and so does a forced tool call; leave one out."
                )
        return {"structured_outputs": form}

    def _form_or_calls(self, conversation: Conversation) -> dict[str, Any]:
        """Return the constraint of an answer that may be calls or has a form."""
        if self.tools is None or not _may_call(conversation):
            return {}
        form = structured_outputs(conversation.sampling)
        if form is None:
            return {}
        parallel = conversation.parallel_tool_calls
        made = form_or_calls(form, conversation.tools, self.tools, self.special, parallel=parallel)
        return {"structured_outputs": made}

    @property
    def can_limit_thinking(self) -> bool:
        """Whether the reasoning format supports a thinking budget."""
        return self.reasoning is not None and bool(self.reasoning.ends)

    def choose_thinking(
        self, conversation: Conversation, renderer: ChatRenderer | None
    ) -> ThinkingChoice:
        """Return the template arguments of a request. Raises `InvalidRequest`."""
        return self.thinking.choose(conversation, self.reasoning, renderer)

    def thinking_args(self, conversation: Conversation) -> dict[str, Any]:
        """Return the extra arguments that enforce a thinking budget; empty without a budget."""
        if conversation.thinking_token_budget is None:
            return {}
        form = self.reasoning
        if form is None or not self.can_limit_thinking:
            raise InvalidRequest(
                "thinking_token_budget",
                "needs a server started with the model's --reasoning-parser.",
            )
        return thinking_budget(form, conversation.thinking_token_budget)

    def answer_formats(
        self,
        conversation: Conversation,
        prompt: str,
        sampling: SamplingParams,
        template_kwargs: Mapping[str, Any],
    ) -> AnswerFormats | None:
        """Return the formats of a request's answer; None for plain text."""
        form = sampling.structured_outputs
        tools = None
        if _may_call(conversation):
            tools = self.tools
            own = structured_outputs(conversation.sampling)
            if tools is not None and own is not None and own != form:
                tools = form_or_calls_format(tools)
        elif conversation.tools and conversation.tool_choice != "none":
            tools = forced_call_format(conversation.tool_choice, self.tools)
        if tools is None and self.reasoning is None:
            return None
        end = prompt[-PROMPT_END_CHARS:]
        request = ParseRequest(
            conversation.tools,
            template_kwargs,
            end,
            whole=not conversation.stream,
            is_constrained=form is not None,
            stream_calls=conversation.stream,
        )
        bounds = None
        if self.reasoning is not None:
            bounds = self.reasoning.bounds(request)
            if not _may_call(conversation):
                bounds = msgspec.structs.replace(bounds, calls=())
        special = frozenset(self.special)
        return AnswerFormats(
            request, tools, self.reasoning, special, self.count, bounds, self.has_budgets
        )


def thinking_budget(form: ReasoningFormat, num_tokens: int) -> dict[str, Any]:
    """Return the extra arguments that end reasoning after some tokens."""
    return {
        "thinking_token_budget": num_tokens,
        "thinking_starts": [*form.starts],
        "thinking_end": form.closes or form.ends[0],
    }


def _may_call(conversation: Conversation) -> bool:
    """Return whether the model decides about calls."""
    return bool(conversation.tools) and conversation.tool_choice in (None, "auto")


def _with_blame(
    blame: AbstractContextManager[Any], read: Callable[[OutputReader, ParseRequest], Reading]
) -> Callable[[OutputReader, ParseRequest], Reading]:
    """Return a format's `read` with exceptions that name its plugin, except for `Broken`."""

    @wraps(read)
    def reading(reader: OutputReader, request: ParseRequest) -> Reading:
        try:
            return (yield from read(reader, request))
        except Broken:
            raise
        except Exception:
            with blame:
                raise

    return reading


def suggested_flags(template: str | Mapping[str, str] | None, registry: Registry) -> str:
    """Return the flags that fit a chat template's tool calls; empty for an unknown format."""
    text = "\n".join(template.values()) if isinstance(template, Mapping) else template or ""
    if "tools" not in text:
        return ""
    tools, reasoning = suggest_parsers(
        text, known_formats(registry, "tool_parsers"), known_formats(registry, "reasoning_parsers")
    )
    if tools is None:
        return ""
    flags = f"--enable-auto-tool-choice --tool-call-parser {tools}"
    return f"{flags} --reasoning-parser {reasoning}" if reasoning else flags


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """Formats of the answer to one request."""

    request: ParseRequest
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    special: frozenset[str]
    count: Callable[[CallStats], None]
    bounds: ReasoningBounds | None = None
    """Where the reasoning lies; None without a reasoning parser."""
    limits_thinking: bool = False
    """Whether the engine ends reasoning at a budget."""

    def engine_params(self, params: SamplingParams, room: int) -> SamplingParams:
        """Return the parameters for the engine: special tokens are visible to the formats.

        `room`: number of tokens that the answer may have at most. Reasoning before a constrained
        answer leaves it a part of them, unless the client sets its budget.
        """
        extra_args = params.extra_args
        budget = self._reserved_budget(params, room)
        if budget:
            extra_args = {**(extra_args or {}), **budget}
        return params.clone(skip_special_tokens=False, extra_args=extra_args)

    def engine_keywords(self, params: SamplingParams) -> dict[str, Any]:
        """Return the keywords of the engine request: its reasoning, where that matters."""
        if self.bounds is None or not (params.stop or params.structured_outputs):
            return {}
        return {REASONING_BOUNDS: self.bounds}

    def _reserved_budget(self, params: SamplingParams, room: int) -> dict[str, Any]:
        """Return the budget of reasoning before a constrained answer; empty if it needs none."""
        form = self.reasoning
        bounds = self.bounds
        if (
            params.structured_outputs is None
            or form is None
            or bounds is None
            or not bounds.ends
            or bounds.at_start == "outside"
            or not self.limits_thinking
            or "thinking_token_budget" in (params.extra_args or {})
        ):
            return {}
        room = room if params.max_tokens is None else min(room, params.max_tokens)
        return thinking_budget(form, room * 3 // 4)

    def output_parser(self, params: SamplingParams) -> OutputParser:
        """Return the parser of one choice; `params` are the client's own."""
        return OutputParser(
            self.request,
            tools=self.tools,
            reasoning=self.reasoning,
            special=self.special,
            show_special=not params.skip_special_tokens,
        )

    def count_call(self, name: str) -> None:
        """Count a call of a tool."""
        names = (tool.get("function", tool).get("name") for tool in self.request.tools)
        is_known = name in names
        self.count(CallStats(known=1) if is_known else CallStats(unknown=1))
