"""Where a constraint takes hold of an output that may begin with reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builtin_plugins.features.structured_outputs.reasoning import Reasoning
from builtin_plugins.features.structured_outputs.rows import Row, TokenMasks
from builtin_plugins.features.structured_outputs.tools import Tools
from core.api import EngineConfig, read_vocabulary
from core.plugin import load_plan, make_plan
from core.testing.byte_tokenizer import ByteTokenizer

TOKENIZER: Any = ByteTokenizer()
VOCABULARY = read_vocabulary(TOKENIZER, ())
STARTS = ("<think>",)
ENDS = ("</think>",)


def over_after(starts: Sequence[str], prompt: str, output: str) -> list[bool]:
    reasoning = Reasoning(starts, ENDS, TOKENIZER, VOCABULARY, TOKENIZER.encode(prompt))
    found = [reasoning.is_over]
    for token in TOKENIZER.encode(output):
        reasoning.take(token)
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
def test_the_constraint_begins_behind_reasoning_or_at_once(
    starts: Sequence[str], prompt: str, output: str, tokens: int
) -> None:
    assert over_after(starts, prompt, output) == [False] * tokens + [True]


def test_an_output_cannot_end_in_its_thoughts() -> None:
    vocabulary = read_vocabulary(TOKENIZER, (256,))
    state: Any = None  # not asked before the thoughts are over
    row = Row(state, (256,), Reasoning((), ENDS, TOKENIZER, vocabulary, ()), TokenMasks(vocabulary))
    row.replay(TOKENIZER.encode("hm"))
    allowed = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[:257]
    assert (allowed[256], allowed[:256].all()) == (0, True)


def test_a_start_marker_that_was_begun_is_spelt_to_its_end() -> None:
    vocabulary = read_vocabulary(TOKENIZER, (256,))
    markers = ("<think>", "<thoughts>")
    reasoning = Reasoning(markers, ENDS, TOKENIZER, vocabulary, TOKENIZER.encode("hi"))
    state: Any = SimpleNamespace(fill=lambda mask: mask.fill(0))  # of a form that nothing has
    row = Row(state, (256,), reasoning, TokenMasks(vocabulary))

    def allowed(mask: np.ndarray[Any, Any]) -> str:
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:257])
        return "".join(map(chr, bits)) if len(bits) < 256 else "anything"

    row.replay(())
    assert allowed(row.mask) == "<"
    guesses = [*TOKENIZER.encode("<thoughts>"), *TOKENIZER.encode("!")]
    points = [allowed(mask) for mask in row.points(guesses)]
    assert points == ["<", "t", "h", "io", "u", "g", "h", "t", "s", ">", "anything", "anything"]
    row.advance(TOKENIZER.encode("<thi"))
    assert allowed(row.mask) == "n"
    row.settle(1, ())
    assert allowed(row.mask) == "io"
    row.advance(TOKENIZER.encode("x"))
    with pytest.raises(ValueError, match="marker of thoughts"):
        row.points(())


def test_a_checkpoint_says_what_its_thoughts_stand_between() -> None:
    config = EngineConfig(options={"reasoning_parser": "hf"})
    tools = Tools(config, load_plan(make_plan(["none", "reasoning_parsers"])))
    stated: Any = {"fields": {"thinking": {"open": "<hm>", "close": "</hm>"}}}
    tools.tokenizer = SimpleNamespace(response_template=stated)  # type: ignore[assignment]
    assert tools.reasoning == (("<hm>",), ("</hm>",))
