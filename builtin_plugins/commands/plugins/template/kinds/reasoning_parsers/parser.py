"""A reasoning parser: says where a model family's thoughts begin and end."""

from __future__ import annotations

from core.api import ParseRequest, Reading, ReasoningFormat, Scan


def read(scan: Scan, request: ParseRequest) -> Reading:
    """Read thoughts if the prompt or the model begins them; what follows is content."""
    opened = request.prompt_opens("<thought>", "</thought>")
    if opened is None:
        opened = yield from scan.maybe("<thought>")
    if opened:
        yield from scan.reasoning("</thought>")


EXAMPLES = [("<thought>Is it?</thought>Yes.", "Is it?", "Yes."), ("Yes.", "", "Yes.")]
"""Texts, the thoughts in them and the content: the conformance suite reads them in every chunking.
"""
FORMAT = ReasoningFormat(
    read, markers=("<thought>", "</thought>"), starts=("<thought>",), ends=("</thought>",)
)
