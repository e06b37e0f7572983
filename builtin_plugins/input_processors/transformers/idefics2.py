"""Idefics2: neighbouring images share a token between them, and a space follows an image."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.input_processors.contract import ProcessedItem
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api.serving import RenderedText


class Idefics2Processor(TransformersProcessor):
    """Processes images, and joins their texts to what is around them in the prompt."""

    def expanded_text(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with each item's text for its placeholder."""
        expanded = super().expanded_text(prompt, items)
        edge = self._processor.fake_image_token
        spans = [span for span in expanded.control_spans if str(expanded)[slice(*span)] == edge]
        return _joined(expanded, spans)

    def expand_ids(self, token_ids: Sequence[int], items: Sequence[ProcessedItem]) -> list[int]:
        """Return token ids with each item's tokens for its placeholder."""
        edge = self._tokenizer.convert_tokens_to_ids(self._processor.fake_image_token)
        found = super().expand_ids(token_ids, items)
        return [
            token
            for token, following in zip(found, [*found[1:], None], strict=True)
            if not token == following == edge
        ]


def _joined(text: RenderedText, edges: Sequence[tuple[int, int]]) -> RenderedText:
    """Return a text with one of two neighbouring edges, and a space between an edge and a word."""
    starts = {start for start, _ in edges}
    ends = {end for _, end in edges}
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    at = 0
    for start, end in (*text.control_spans, (len(text), len(text))):
        plain = str(text)[at:start]
        if plain and at in ends and not plain[0].isspace() and plain[0] != "<":
            plain = f" {plain}"
        is_second = start == at and start in starts and at in ends
        own = "" if is_second else str(text)[start:end]
        pieces += [plain, own]
        length += len(plain)
        if own:
            spans.append((length, length + len(own)))
        length += len(own)
        at = end
    return RenderedText("".join(pieces), spans)
