"""Reasoning and tool calls: which formats the server reads, and what they ask of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.tools import check_tools, forced_form, forced_format
from core.api import (
    Broken,
    CallStats,
    ConfigError,
    InvalidRequest,
    OutputParser,
    ParseRequest,
    Reading,
    ReasoningFormat,
    SamplingParams,
    Scan,
    ToolFormat,
    fitted,
    known_formats,
    suggest,
)

_OPTIONS: Final = (
    "enable_auto_tool_choice",
    "exclude_tools_when_tool_choice_none",
    "reasoning_parser",
    "tool_call_parser",
)
PROMPT_END_CHARS: Final = 200
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
    def shared(cls, engine: Any, options: Mapping[str, Any]) -> Formats:
        """Return the formats of an engine: all route groups with the same options have the same."""
        if engine.registry is None:
            return cls.from_engine(engine, options)
        chosen = {name: options.get(name) for name in _OPTIONS}
        made: Formats = engine.registry.shared(
            f"formats {chosen}", lambda: cls.from_engine(engine, chosen)
        )
        return made

    @classmethod
    def from_engine(cls, engine: Any, options: Mapping[str, Any]) -> Formats:
        """Load the chosen formats.

        Raises `ConfigError` for unknown names, and templates that none can be made from.
        """

        def load(kind: str, name: str | None) -> Any:
            if not name:
                return None
            registered = engine.registry.choose(kind, name)
            form = fitted(
                engine.registry.load(registered), getattr(tokenizer, "response_template", None)
            )
            return replace(form, read=_blamed(engine.registry.blame(registered), form.read))

        tokenizer = engine.tokenizer
        parser = options.get("tool_call_parser")
        suggestion = (
            ""
            if parser
            else suggested_flags(getattr(tokenizer, "chat_template", None), engine.registry)
        )
        if options.get("enable_auto_tool_choice") and not parser:
            hint = f"; the chat template suggests {suggestion}" if suggestion else ""
            raise ConfigError(
                "--enable-auto-tool-choice needs --tool-call-parser NAME, which says how the "
                f"model writes calls{hint}."
            )
        return cls(
            tools=load("tool_parsers", parser),
            reasoning=load("reasoning_parsers", options.get("reasoning_parser")),
            auto=bool(options.get("enable_auto_tool_choice")),
            hide_unchosen=bool(options.get("exclude_tools_when_tool_choice_none")),
            suggestion=suggestion,
            special={tokenizer.decode([token]): token for token in tokenizer.special_ids}
            if tokenizer
            else {},
            count=engine.sinks.calls,
        )

    def check(self, asked: Conversation) -> None:
        """Raise `InvalidRequest` for tools that cannot be called here."""
        check_tools(asked.tools, asked.tool_choice)
        if asked.tools and asked.tool_choice in (None, "auto") and not (self.auto and self.tools):
            hint = f"; the chat template suggests {self.suggestion}" if self.suggestion else ""
            raise InvalidRequest(
                "tool_choice",
                "'auto', the default with `tools`, needs a server started with "
                "--enable-auto-tool-choice and "
                "--tool-call-parser; set it to 'none', 'required' or a function, or restart the "
                f"server with both{hint}.",
            )

    def shown_tools(self, asked: Conversation) -> list[dict[str, Any]] | None:
        """Return the tools that stand in the prompt."""
        return None if asked.tool_choice == "none" and self.hide_unchosen else asked.tools or None

    def constraint(self, asked: Conversation) -> dict[str, Any]:
        """Return the sampling parameters that hold an answer to the choice of tools; none where
        nothing is forced.
        """
        form = forced_form(
            asked.tools,
            asked.tool_choice,
            self.tools,
            self.special,
            parallel=asked.parallel_tool_calls,
        )
        if form is None:
            return {}
        for name in ("response_format", "structured_outputs"):
            if asked.sampling.get(name) not in (None, {}, {"type": "text"}):
                raise InvalidRequest(
                    name, "gives the answer a form, and so does a forced tool call; leave one out."
                )
        return {"structured_outputs": form}

    @property
    def limits_thinking(self) -> bool:
        """Say whether thoughts can be ended when there are enough of them."""
        return self.reasoning is not None and bool(self.reasoning.ends)

    def budget(self, asked: Conversation) -> dict[str, Any]:
        """Return the arguments that end thoughts in time; none without a budget."""
        if asked.thinking_token_budget is None:
            return {}
        form = self.reasoning
        if form is None or not self.limits_thinking:
            raise InvalidRequest(
                "thinking_token_budget",
                "needs a server started with the model's --reasoning-parser.",
            )
        return {
            "thinking_token_budget": asked.thinking_token_budget,
            "thinking_starts": [*form.starts],
            "thinking_end": form.closes or form.ends[0],
        }

    def reader(self, asked: Conversation, prompt: str) -> AnswerReader | None:
        """Return how the answer to a request is read; None where it is shown as it comes."""
        tools = None
        if asked.tools and asked.tool_choice in (None, "auto"):
            tools = self.tools
        elif asked.tools and asked.tool_choice != "none":
            tools = forced_format(asked.tool_choice, self.tools)
        if tools is None and self.reasoning is None:
            return None
        end = prompt[-PROMPT_END_CHARS:]
        request = ParseRequest(
            asked.tools, asked.template_kwargs, end, whole=not asked.stream, in_pieces=asked.stream
        )
        return AnswerReader(request, tools, self.reasoning, frozenset(self.special), self.count)


def _blamed(
    blame: AbstractContextManager[Any], read: Callable[[Scan, ParseRequest], Reading]
) -> Callable[[Scan, ParseRequest], Reading]:
    """Return a format's `read` whose exceptions name its plugin; `Broken` is what formats are to
    raise.
    """

    @wraps(read)
    def reading(scan: Scan, request: ParseRequest) -> Reading:
        try:
            return (yield from read(scan, request))
        except Broken:
            raise
        except Exception:
            with blame:
                raise

    return reading


def suggested_flags(template: str | Mapping[str, str] | None, registry: Any) -> str:
    """Return the flags for a chat template that takes tools and shows how calls are written; empty
    for others.
    """
    text = "\n".join(template.values()) if isinstance(template, Mapping) else template or ""
    if "tools" not in text or registry is None:
        return ""
    tools, reasoning = suggest(
        text, known_formats(registry, "tool_parsers"), known_formats(registry, "reasoning_parsers")
    )
    flags = f"--enable-auto-tool-choice --tool-call-parser {tools}"
    return (
        "" if tools is None else f"{flags} --reasoning-parser {reasoning}" if reasoning else flags
    )


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Formats of one request."""

    request: ParseRequest
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    special: frozenset[str]
    count: Callable[[CallStats], None]

    def sampling(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with which the formats see their special tokens."""
        return params.clone(skip_special_tokens=False)

    def begin(self, params: SamplingParams) -> OutputParser:
        """Return the parser of one choice; `params` are those the client asked for."""
        return OutputParser(
            self.request,
            tools=self.tools,
            reasoning=self.reasoning,
            special=self.special,
            show_special=not params.skip_special_tokens,
        )

    def note(self, called: str) -> None:
        """Count a call of a tool."""
        is_known = any(
            tool.get("function", tool).get("name") == called for tool in self.request.tools
        )
        self.count(CallStats(is_known, not is_known))
