"""Output parser formats for vLLM's parsers; each reads the complete text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from builtin_plugins.output_parsers.api import (
    Broken,
    OutputReader,
    ParseRequest,
    Reading,
    ReasoningFormat,
    ToolFormat,
)
from engine_vllm_compat.discovery import registered
from engine_vllm_compat.protocol import ChatCompletionRequest
from engine_vllm_compat.registries import BaseThinkingReasoningParser, Classes


def tool_formats() -> Iterator[tuple[str, ToolFormat]]:
    """Yield the registered tool parsers by name."""
    tools = registered().tools
    for name in tools.list_registered():
        yield name, ToolFormat(_calls(tools, name))


def reasoning_formats() -> Iterator[tuple[str, ReasoningFormat]]:
    """Yield the registered reasoning parsers by name."""
    parsers = registered().reasoning
    for name in parsers.list_registered():
        yield name, ReasoningFormat(_reasoning(parsers, name))


def _calls(classes: Classes, name: str) -> Callable[[OutputReader, ParseRequest], Reading]:
    def read(reader: OutputReader, request: ParseRequest) -> Reading:
        if not request.tools:  # no tools, no calls
            return
        with reader.attempt():
            text = yield from _complete_text(reader)
            found = classes.get(name)(TokenizerStub()).extract_tool_calls(
                text, _vllm_request(request)
            )
            if not found.tools_called:
                raise Broken  # all of it is content
            for call in found.tool_calls:
                reader.add_call(call.function.name, call.function.arguments, call.id)
            reader.add_content(found.content or "")

    return read


def _reasoning(classes: Classes, name: str) -> Callable[[OutputReader, ParseRequest], Reading]:
    def read(reader: OutputReader, request: ParseRequest) -> Reading:
        parser = classes.get(name)(TokenizerStub())
        if isinstance(parser, BaseThinkingReasoningParser):
            yield from reader.skip_optional(parser.start_token)
            yield from reader.reasoning_until(parser.end_token)
            return
        text = yield from _complete_text(reader)
        reasoning, content = parser.extract_reasoning(text, _vllm_request(request))
        reader.drop()
        reader.add_reasoning(reasoning or "")
        reader.add_content(content or "")

    return read


def _complete_text(reader: OutputReader) -> Reading:
    """Return the complete output text."""
    parts: list[str] = []
    try:
        yield from reader.read_until(feed=parts.append)  # no marker ends it
    except Broken:
        return "".join(parts)


def _vllm_request(request: ParseRequest) -> ChatCompletionRequest:
    """Return the request in vLLM's form."""
    tools = [tool if "function" in tool else {"function": tool} for tool in request.tools]
    return ChatCompletionRequest.model_validate(
        {"tools": tools or None, "chat_template_kwargs": dict(request.template_kwargs)}
    )


class TokenizerStub:
    """Tokenizer stub in which every text is one token: parsers look up their markers."""

    def __init__(self) -> None:
        self._vocab = _Vocabulary()

    def get_vocab(self) -> Mapping[str, int]:
        """Return token ids by text."""
        return self._vocab

    vocab = property(get_vocab)

    def encode(self, text: str, *others: Any, **more: Any) -> list[int]:
        """Return the token of a text."""
        return [self._vocab[text]]


class _Vocabulary(dict[str, int]):
    """Vocabulary with a stable id for every text."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]

    def get(self, text: str, default: Any = None) -> int:
        return self[text]

    def __contains__(self, text: object) -> bool:
        return True
