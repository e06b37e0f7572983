"""A reasoning parser: where a model's reasoning begins and ends."""

from __future__ import annotations

from builtin_plugins.output_parsers.api import OutputReader, ParseRequest, Reading, ReasoningFormat


def read(reader: OutputReader, request: ParseRequest) -> Reading:
    """Parse reasoning opened by the prompt or the model; the rest is content."""
    opened = request.prompt_opens("<thought>", "</thought>")
    if opened is None:
        opened = yield from reader.skip_optional("<thought>")
    if opened:
        yield from reader.reasoning_until("</thought>")


EXAMPLES = [("<thought>Is it?</thought>Yes.", "Is it?", "Yes."), ("Yes.", "", "Yes.")]
"""Texts, their reasoning and content, tested in every chunking by the conformance suite."""
FORMAT = ReasoningFormat(
    read, markers=("<thought>", "</thought>"), starts=("<thought>",), ends=("</thought>",)
)
