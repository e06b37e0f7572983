"""Replaces placeholders of a prompt by the texts of its items, in order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from builtin_plugins.input_processors.contract import ProcessedItem
from core.api import InvalidRequest
from core.api.serving import RenderedText


def expand_text(
    prompt: RenderedText,
    items: Sequence[ProcessedItem],
    placeholders: Mapping[str, str],
    special: re.Pattern[str],
) -> RenderedText:
    """Return the prompt with each item's text for its placeholder.

    `special` matches the special tokens of an item's text. Raises `InvalidRequest` if items
    and placeholders differ.
    """
    modality_of = {text: modality for modality, text in placeholders.items()}
    marks = [span for span in prompt.control_spans if str(prompt)[slice(*span)] in modality_of]
    found = [modality_of[str(prompt)[slice(*span)]] for span in marks]
    check_order(found, items, placeholders)
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    items_at = dict(zip(marks, items, strict=True))
    length = 0
    end = 0
    for start, stop in prompt.control_spans:
        before = str(prompt)[end:start]
        own = str(prompt)[start:stop]
        at = length + len(before)
        item = items_at.get((start, stop))
        if item is None:
            spans.append((at, at + len(own)))
        else:
            own = item.text
            spans += [(at + each.start(), at + each.end()) for each in special.finditer(own)]
        pieces += [before, own]
        length = at + len(own)
        end = stop
    return RenderedText("".join([*pieces, str(prompt)[end:]]), spans)


def begun(prompt: RenderedText, start: str) -> RenderedText:
    """Return a prompt that begins with a control token, if it does not yet."""
    if not start or str(prompt).startswith(start):
        return prompt
    spans = [(first + len(start), end + len(start)) for first, end in prompt.control_spans]
    return RenderedText(f"{start}{prompt}", [(0, len(start)), *spans])


def expand_ids(
    token_ids: Sequence[int],
    items: Sequence[tuple[ProcessedItem, Sequence[int]]],
    placeholders: Mapping[str, int],
) -> list[int]:
    """Return token ids with the ids of each item's text for its placeholder."""
    modality_of = {token: modality for modality, token in placeholders.items()}
    found = [modality_of[token] for token in token_ids if token in modality_of]
    check_order(found, [item for item, _ in items], {m: str(t) for m, t in placeholders.items()})
    left = iter(items)
    expanded: list[int] = []
    for token in token_ids:
        expanded += next(left)[1] if token in modality_of else [token]
    return expanded


def check_order(
    found: Sequence[str], items: Sequence[ProcessedItem], placeholders: Mapping[str, str]
) -> None:
    """Raise `InvalidRequest` unless the placeholders of a prompt are those of its items."""
    expected = [item.modality for item in items]
    for modality, text in placeholders.items():
        if found.count(modality) != expected.count(modality):
            raise InvalidRequest(
                "prompt",
                f"got {found.count(modality)} placeholders {text!r} for {expected.count(modality)} "
                f"items of modality {modality!r}; expected one for each. Correct the prompt.",
            )
    if list(found) != expected:
        order = f"got placeholders in the order {found}; expected {expected}."
        raise InvalidRequest("prompt", f"{order} Correct the prompt.")
