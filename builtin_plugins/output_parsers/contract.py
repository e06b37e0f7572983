"""What a tool or reasoning parser plugin provides: its family's syntax, as a
generator.

The runtime that drives the generators is `builtin_plugins.output_parsers.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builtin_plugins.output_parsers.reasoning_bounds import ReasoningBounds


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """The part of a request that a format may use."""

    tools: Sequence[Mapping[str, Any]] = ()
    """The request's tools: `{"type": "function", "function": {"name",
    "parameters", ...}}`.
    """
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs`, which switch reasoning on and off."""
    prompt_end: str = ""
    """Last text of the prompt: templates may open, or open and close, the
    reasoning there.
    """
    whole: bool = False
    """Nothing is sent before the output ends, so a format may wait for the
    end.
    """
    is_constrained: bool = False
    """The text after the reasoning has a required form: it is content as it stands."""
    stream_calls: bool = False
    """Calls are emitted while they are written.

    Emitted text is final, even of a broken call.
    """

    def parameters(self, tool: str) -> Mapping[str, Any]:
        """Return the JSON schema of a tool's arguments; empty for an unknown
        tool.
        """
        for given in self.tools:
            function = given.get("function", given)
            if function.get("name") == tool:
                schema = function.get("parameters")
                return schema if isinstance(schema, Mapping) else {}
        return {}

    def fill_names(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the texts, those with `{name}` once for each tool."""
        names = [str(tool.get("function", tool).get("name")) for tool in self.tools]
        filled = [
            text.replace("{name}", name)
            for text in texts
            for name in (names if "{name}" in text else [""])
        ]
        return tuple(dict.fromkeys(filled))

    def prompt_opens(self, start: str, end: str) -> bool | None:
        """Return True if the prompt ends inside reasoning, False if after it,
        None if unknown.
        """
        opened = self.prompt_end.rfind(start)
        closed = self.prompt_end.rfind(end)
        last = self.prompt_end.rstrip()
        if opened > closed and last.endswith(start):
            return True
        return False if closed > opened and last.endswith(end) else None


def random_call_id(name: str, index: int) -> str:
    """Return a call id in OpenAI's form."""
    import secrets  # lazy: faster start-up

    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class CallText:
    """Fixed texts around a family's JSON calls.

    Forced calls are constrained to them.
    """

    before: str
    """Text before a call's arguments; `{name}` stands for the tool."""
    after: str = ""
    """Text after the arguments."""
    between: str = "\n"
    """Text between two calls."""
    start: str = ""
    """Text before the first call."""
    end: str = ""
    """Text after the last call."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A model family's tool call syntax. Target of a `tool_parsers` entry."""

    read: Callable[[Any, ParseRequest], Any]
    """Generator over an `OutputReader`: emits content and calls; text left
    unread is content.
    """
    markers: tuple[str, ...] = ()
    """Texts that are special tokens in the family's tokenizers, and then
    count only as such.
    """
    call_ends: tuple[str, ...] = ()
    """Texts that end a call or all calls; any of them may replace a missing
    one.

    With call ends, broken calls are read again from the start of the next call.
    """
    call_id: Callable[[str, int], str] = random_call_id
    """Returns the id of a call without one, from its name and its index in
    the answer.
    """
    writes: CallText | None = None
    """Texts around JSON calls; without them forced calls are a JSON list."""
    begins: tuple[str, ...] = ()
    """Texts that start calls, if `writes` is unset; `{name}` stands for the
    tool.

    An answer with a required form may start with one and is a call then.
    """
    template_hints: tuple[str, ...] = ()
    """Texts that together identify the family's chat templates: the parser is
    suggested then.
    """
    from_template: Callable[[Mapping[str, Any] | None], ToolFormat] | None = None
    """Returns the format for a checkpoint's `response_template`, if this one
    depends on it.
    """


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A model family's reasoning syntax.

    Target of a `reasoning_parsers` entry.
    """

    read: Callable[[Any, ParseRequest], Any]
    """Shows reasoning, and the rest as content, which the tool
    parser reads.
    """
    markers: tuple[str, ...] = ()
    """Texts that are special tokens in the family's tokenizers, and then
    count only as such.
    """
    starts: tuple[str, ...] = ()
    """Texts that start optional reasoning; empty if the output always starts
    with reasoning.
    """
    ends: tuple[str, ...] = ()
    """Texts that end all reasoning: a grammar constrains the text
    after them.
    """
    closes: str = ""
    """Text that ends reasoning at its token budget; default: the first of
    `ends`.
    """
    calls: tuple[str, ...] = ()
    """Texts that start a tool call in place of `ends`; `{name}` stands for the
    tool.
    """
    find_bounds: Callable[[ParseRequest], ReasoningBounds] | None = None
    """Returns where an output's reasoning lies; default: by `starts`, `ends`
    and the prompt's end.
    """
    off_switches: Mapping[str, Any] = field(default_factory=dict)
    """Template arguments that switch reasoning off; default: `enable_thinking`
    and `thinking`.
    """
    template_hints: tuple[str, ...] = ()
    """Texts that together identify the family's chat templates: the parser is
    suggested then.
    """
    from_template: Callable[[Mapping[str, Any] | None], ReasoningFormat] | None = None
    """Returns the format for a checkpoint's `response_template`, if this one
    depends on it.
    """

    def bounds(self, request: ParseRequest) -> ReasoningBounds:
        """Return where the reasoning of a request's output lies."""
        if self.find_bounds is not None:
            return self.find_bounds(request)
        prompt = request.prompt_end.rstrip()
        if not self.ends or prompt.endswith(self.ends):
            return ReasoningBounds(ends=self.ends, starts=self.starts, at_start="outside")
        is_open = not self.starts or prompt.endswith(self.starts)
        return ReasoningBounds(
            ends=self.ends,
            starts=self.starts,
            at_start="inside" if is_open else "optional",
            calls=request.fill_names(self.calls),
        )
