"""What every input processor must hold to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builtin_plugins.input_processors.contract import InputProcessor
from core.api.serving import RenderedText
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.testing.conformance import Subject

CONTRACT = InputProcessor
FORM = "EXAMPLES = [(source, [Image.new('RGB', (40, 30)), Image.new('RGB', (8, 8))])]"
"""Form of the examples: a model source, and images."""


def check_items_have_their_number_of_tokens(subject: Subject) -> None:
    """The placeholder of each item becomes as many tokens as its tower returns rows."""
    for processor, items in _processed(subject):
        marker = processor.placeholders["image"]
        prompt = marker.join("a" * (len(items) + 1))
        spans = []
        at = prompt.find(marker)
        while at >= 0:
            spans.append((at, at + len(marker)))
            at = prompt.find(marker, at + len(marker))
        expanded = processor.expand(RenderedText(prompt, spans), items)
        for item in items:
            assert item.num_tokens > 0, f"{subject.entry.name}: an item has no tokens."
            assert isinstance(expanded, list) or item.text in expanded, (
                f"{subject.entry.name}: expand leaves out {item.text!r}."
            )


def check_processing_is_a_pure_function(subject: Subject) -> None:
    """Processing twice gives equal tensors: they are shared by content hash."""
    for (_, first), (_, second) in zip(_processed(subject), _processed(subject), strict=True):
        for one, other in zip(first, second, strict=True):
            same = one.tensors.keys() == other.tensors.keys() and all(
                bool((tensor == other.tensors[name]).all()) for name, tensor in one.tensors.items()
            )
            assert same, f"{subject.entry.name}: the same image has other tensors again."


def check_identity_is_a_text(subject: Subject) -> None:
    """It is part of every content hash."""
    for processor, _ in _processed(subject):
        assert isinstance(processor.identity, str), f"{subject.entry.name}: identity is no text."
        assert processor.identity, f"{subject.entry.name}: identity is empty."


def _processed(subject: Subject) -> Iterator[tuple[InputProcessor, list[Any]]]:
    for source, images in examples(subject, FORM):
        processor: InputProcessor = subject.target(source, subject.config)
        yield processor, [processor.process("image", image, {}) for image in images]
