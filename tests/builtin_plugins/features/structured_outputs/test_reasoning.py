"""Where the constraint of an output with optional reasoning starts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builtin_plugins.features.structured_outputs.grammar_row import (
    GrammarRow,
    ReasoningTracker,
    TokenMasks,
)
from builtin_plugins.features.structured_outputs.resources import GrammarResources
from builtin_plugins.grammar_backends.api import read_vocabulary
from core.api import EngineConfig
from core.plugin import load_plan, make_plan
from core.testing.byte_tokenizer import ByteTokenizer

TOKENIZER: Any = ByteTokenizer()
VOCABULARY = read_vocabulary(TOKENIZER, ())
STARTS = ("<think>",)
ENDS = ("</think>",)


def over_after(starts: Sequence[str], prompt: str, output: str) -> list[bool]:
    reasoning = ReasoningTracker(starts, ENDS, TOKENIZER, VOCABULARY, TOKENIZER.encode(prompt))
    found = [reasoning.is_over]
    for token in TOKENIZER.encode(output):
        reasoning.advance(token)
        found.append(reasoning.is_over)
        if reasoning.is_over:
            break
    return found


@pytest.mark.parametrize(
    ("starts", "prompt", "output", "tokens"),
    [
        ((), "hi", "hm</think>{", len("hm</think>")),
        (STARTS, "hi", "<think>hm</think>{", len("<think>hm</think>")),
        (STARTS, "hi", "{", 1),
        (STARTS, "hi<think>\n", "hm</think>{", len("hm</think>")),
        (STARTS, "hi<think></think>", "", 0),
        ((), "hi<think></think>\n", "", 0),
    ],
)
def test_constraint_starts_after_reasoning_or_at_once(
    starts: Sequence[str], prompt: str, output: str, tokens: int
) -> None:
    assert over_after(starts, prompt, output) == [False] * tokens + [True]


def test_output_cannot_end_within_reasoning() -> None:
    vocabulary = read_vocabulary(TOKENIZER, (256,))
    state: Any = None  # not used before reasoning is over
    row = GrammarRow(
        state, (256,), ReasoningTracker((), ENDS, TOKENIZER, vocabulary, ()), TokenMasks(vocabulary)
    )
    row.replay(TOKENIZER.encode("hm"))
    allowed = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[:257]
    assert (allowed[256], allowed[:256].all()) == (0, True)


def test_started_reasoning_marker_must_be_completed() -> None:
    vocabulary = read_vocabulary(TOKENIZER, (256,))
    markers = ("<think>", "<thoughts>")
    reasoning = ReasoningTracker(markers, ENDS, TOKENIZER, vocabulary, TOKENIZER.encode("hi"))
    state: Any = SimpleNamespace(fill=lambda mask: mask.fill(0))  # a grammar that allows nothing
    row = GrammarRow(state, (256,), reasoning, TokenMasks(vocabulary))

    def allowed(mask: np.ndarray[Any, Any]) -> str:
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:257])
        return "".join(map(chr, bits)) if len(bits) < 256 else "anything"

    row.replay(())
    assert allowed(row.mask) == "<"
    draft_tokens = [*TOKENIZER.encode("<thoughts>"), *TOKENIZER.encode("!")]
    points = [allowed(mask) for mask in row.points(draft_tokens)]
    assert points == ["<", "t", "h", "io", "u", "g", "h", "t", "s", ">", "anything", "anything"]
    row.advance(TOKENIZER.encode("<thi"))
    assert allowed(row.mask) == "n"
    row.settle(1, ())
    assert allowed(row.mask) == "io"
    row.advance(TOKENIZER.encode("x"))
    with pytest.raises(ValueError, match="started reasoning marker"):
        row.points(())


def test_response_template_states_the_reasoning_markers() -> None:
    config = EngineConfig(options={"reasoning_parser": "hf"})
    tools = GrammarResources(config, load_plan(make_plan(["none", "reasoning_parsers"])))
    stated: Any = {"fields": {"thinking": {"open": "<hm>", "close": "</hm>"}}}
    tools.tokenizer = SimpleNamespace(response_template=stated)  # type: ignore[assignment]
    assert tools.reasoning == (("<hm>",), ("</hm>",))
