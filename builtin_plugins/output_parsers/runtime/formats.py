"""What a tool or reasoning parser plugin states: how a model family writes, as a generator over a
`Scan`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from builtin_plugins.output_parsers.runtime.scan import Scan
from builtin_plugins.output_parsers.runtime.source import Waits

Reading = Waits
"""A format, or a part of one, under way."""
Format = TypeVar("Format", "ToolFormat", "ReasoningFormat")


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """What a format may know of the request whose output it reads."""

    tools: Sequence[Mapping[str, Any]] = ()
    """As the client gave them: `{"type": "function", "function": {"name", "parameters", ...}}`."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs`, where thinking is switched on and off."""
    prompt_end: str = ""
    """The last text of the prompt: templates may open, or open and close, the reasoning there."""
    whole: bool = False
    """Nothing is shown before the output has ended: what its end says of its beginning can be
    waited for.
    """
    in_pieces: bool = False
    """Calls are told while they are written.

    What was told stays: of a call that breaks, the beginning.
    """

    def parameters(self, tool: str) -> Mapping[str, Any]:
        """Return the JSON schema of a tool's arguments; empty for an unknown tool."""
        for given in self.tools:
            function = given.get("function", given)
            if function.get("name") == tool:
                schema = function.get("parameters")
                return schema if isinstance(schema, Mapping) else {}
        return {}

    def prompt_opens(self, start: str, end: str) -> bool | None:
        """Say whether the prompt ends inside reasoning (True), or behind it (False); None if
        neither marker is last.
        """
        opened = self.prompt_end.rfind(start)
        closed = self.prompt_end.rfind(end)
        last = self.prompt_end.rstrip()
        if opened > closed and last.endswith(start):
            return True
        return False if closed > opened and last.endswith(end) else None


def random_call_id(name: str, index: int) -> str:
    """Return an id as OpenAI makes them."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class CallText:
    """How a family writes calls that are JSON, as its models have learnt it: calls that must come
    are held to it.
    """

    before: str
    """In front of a call's arguments; `{name}` stands for the tool."""
    after: str = ""
    """Behind the arguments."""
    between: str = "\n"
    """From one call to the next."""
    start: str = ""
    """In front of the first call."""
    end: str = ""
    """Behind the last."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model family writes tool calls. Target of a `tool_parsers` entry."""

    read: Callable[[Scan, ParseRequest], Reading]
    """Shows text as content and notes calls; everything it leaves unread when it returns is
    content.
    """
    markers: tuple[str, ...] = ()
    """Texts that are special tokens in the family's own tokenizers, and then count only as such."""
    call_ends: tuple[str, ...] = ()
    """Texts that end a call, or all of them: where one is missing, `Scan.close_call` lets any other
    stand for it.

    A format that states some has broken calls read again where the next begins.
    """
    call_id: Callable[[str, int], str] = random_call_id
    """Makes the id of a call the model gave none, from its name and its index in the answer."""
    writes: CallText | None = None
    """How its models write calls, where that is JSON between fixed texts; else calls that must come
    are a JSON list.
    """
    signs: tuple[str, ...] = ()
    """Texts that all stand in the family's chat templates and seldom together elsewhere: the parser
    is suggested then.
    """
    described: Callable[[Mapping[str, Any] | None], ToolFormat] | None = None
    """Makes the format that reads a model from its checkpoint's `response_template`, if this one is
    made so.
    """


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model family tells thoughts from answers. Target of a `reasoning_parsers` entry."""

    read: Callable[[Scan, ParseRequest], Reading]
    """Shows reasoning, and as content what is none; the tool parser reads that content."""
    markers: tuple[str, ...] = ()
    """Texts that are special tokens in the family's own tokenizers, and then count only as such."""
    starts: tuple[str, ...] = ()
    """Texts with which reasoning begins where it may also be left out; empty: there is always some,
    begun or not.
    """
    ends: tuple[str, ...] = ()
    """Texts behind which no more reasoning comes: there a grammar takes hold of the answer."""
    closes: str = ""
    """What ends thoughts that have gone on for long enough; empty: the first of `ends`."""
    signs: tuple[str, ...] = ()
    """Texts that all stand in the family's chat templates and seldom together elsewhere: the parser
    is suggested then.
    """
    described: Callable[[Mapping[str, Any] | None], ReasoningFormat] | None = None
    """Makes the format that reads a model from its checkpoint's `response_template`, if this one is
    made so.
    """


def fitted(form: Format, template: Mapping[str, Any] | None) -> Format:
    """Return a format as it reads one model, whose `response_template` is given.

    Raises `ConfigError` if it cannot.
    """
    return form if form.described is None else form.described(template)
