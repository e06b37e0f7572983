"""Parsers of vLLM's kind as formats: each reads an answer as a text, once it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from core.api import Broken, ParseRequest, Reading, ReasoningFormat, Scan, ToolFormat
from engine_vllm_compat.discovery import registered
from engine_vllm_compat.protocol import ChatCompletionRequest
from engine_vllm_compat.registries import BaseThinkingReasoningParser, Classes


def tool_formats() -> Iterator[tuple[str, ToolFormat]]:
    """Yield what is registered, by name."""
    tools = registered().tools
    for name in tools.list_registered():
        yield name, ToolFormat(_calls(tools, name))


def reasoning_formats() -> Iterator[tuple[str, ReasoningFormat]]:
    """Yield what is registered, by name."""
    reasoning = registered().reasoning
    for name in reasoning.list_registered():
        yield name, ReasoningFormat(_thoughts(reasoning, name))


def _calls(classes: Classes, name: str) -> Callable[[Scan, ParseRequest], Reading]:
    def read(scan: Scan, request: ParseRequest) -> Reading:
        if not request.tools:  # nobody asked for calls
            return
        with scan.attempt():
            text = yield from _whole(scan)
            found = classes.get(name)(OneTokenEach()).extract_tool_calls(text, _asked(request))
            if not found.tools_called:
                raise Broken  # it is text, all of it
            for call in found.tool_calls:
                scan.call(call.function.name, call.function.arguments, call.id)
            scan.say(found.content or "")

    return read


def _thoughts(classes: Classes, name: str) -> Callable[[Scan, ParseRequest], Reading]:
    def read(scan: Scan, request: ParseRequest) -> Reading:
        parser = classes.get(name)(OneTokenEach())
        if isinstance(parser, BaseThinkingReasoningParser):
            yield from scan.maybe(parser.start_token)
            yield from scan.reasoning(parser.end_token)
            return
        text = yield from _whole(scan)
        thoughts, content = parser.extract_reasoning(text, _asked(request))
        scan.drop()
        scan.think(thoughts or "")
        scan.say(content or "")

    return read


def _whole(scan: Scan) -> Reading:
    """Return the text of the output when it has ended."""
    parts: list[str] = []
    try:
        yield from scan.take(feed=parts.append)  # no marker ends it
    except Broken:
        return "".join(parts)


def _asked(request: ParseRequest) -> ChatCompletionRequest:
    """Return the request as a parser of vLLM's knows it."""
    tools = [tool if "function" in tool else {"function": tool} for tool in request.tools]
    return ChatCompletionRequest.model_validate(
        {"tools": tools or None, "chat_template_kwargs": dict(request.template_kwargs)}
    )


class OneTokenEach:
    """A tokenizer that knows every text as one token: parsers look their markers up, and read
    texts.
    """

    def __init__(self) -> None:
        self._vocab = _Vocabulary()

    def get_vocab(self) -> Mapping[str, int]:
        """Return token ids by text."""
        return self._vocab

    vocab = property(get_vocab)

    def encode(self, text: str, *others: Any, **more: Any) -> list[int]:
        """Return the text's token."""
        return [self._vocab[text]]


class _Vocabulary(dict[str, int]):
    """Has an id for every text, the same each time."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]

    def get(self, text: str, default: Any = None) -> int:
        return self[text]

    def __contains__(self, text: object) -> bool:
        return True
