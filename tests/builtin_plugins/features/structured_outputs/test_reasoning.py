"""Where the constraint of an output with optional reasoning starts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from builtin_plugins.features.structured_outputs.grammar_row import (
    GrammarRow,
    TokenMasks,
)
from builtin_plugins.features.structured_outputs.reasoning_tracker import (
    ReasoningTracker,
    TokenTexts,
)
from builtin_plugins.features.structured_outputs.resources import GrammarResources
from builtin_plugins.features.structured_outputs.worker import _StepRow, preferred_starts
from builtin_plugins.grammar_backends.api import read_vocabulary
from builtin_plugins.output_parsers.api import ParseRequest, ReasoningBounds, ReasoningFormat
from core.api import EngineConfig
from core.plugin import load_plan, make_plan
from core.testing.byte_tokenizer import ByteTokenizer

TOKENIZER: Any = ByteTokenizer()
VOCABULARY = read_vocabulary(TOKENIZER, ())
STARTS = ("<think>",)
ENDS = ("</think>",)


def over_after(starts: Sequence[str], prompt: str, output: str) -> list[bool]:
    form = ReasoningFormat(lambda reader, request: iter(()), starts=tuple(starts), ends=ENDS)
    bounds = form.bounds(ParseRequest(prompt_end=prompt))
    reasoning = ReasoningTracker(bounds, TokenTexts(TOKENIZER, VOCABULARY))
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
        state,
        (256,),
        ReasoningTracker(ReasoningBounds(ends=ENDS), TokenTexts(TOKENIZER, vocabulary)),
        TokenMasks(vocabulary),
    )
    row.replay(TOKENIZER.encode("hm"))
    allowed = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[:257]
    assert (allowed[256], allowed[:256].all()) == (0, True)


def test_started_reasoning_marker_must_be_completed() -> None:
    vocabulary = read_vocabulary(TOKENIZER, (256,))
    markers = ("<think>", "<thoughts>")
    bounds = ReasoningBounds(ends=ENDS, starts=markers, at_start="optional")
    reasoning = ReasoningTracker(bounds, TokenTexts(TOKENIZER, vocabulary))
    state: Any = SimpleNamespace(  # a grammar that allows nothing
        fill=lambda mask: mask.fill(0), accept=lambda token: False
    )
    row = GrammarRow(state, (256,), reasoning, TokenMasks(vocabulary))

    def allowed(mask: np.ndarray[Any, Any]) -> str:
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:257])
        return "".join(map(chr, bits)) if len(bits) < 256 else "anything"

    row.replay(())
    assert allowed(row.mask) == "<"
    assert row.optional == [ord("<")]
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
    assert tools.reasoning is not None
    assert (tools.reasoning.starts, tools.reasoning.ends) == (("<hm>",), ("</hm>",))


class SpecialTokenizer(ByteTokenizer):
    """Bytes, and the special tokens 257 `<|channel|>` and 258 `<|message|>`."""

    special_ids = frozenset({256, 257, 258})

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        names = {257: "<|channel|>", 258: "<|message|>"}
        return "".join(names.get(token) or ByteTokenizer.decode(self, [token]) for token in ids)


def test_end_marker_of_special_tokens_and_text_is_found() -> None:
    tokenizer: Any = SpecialTokenizer()
    texts = TokenTexts(tokenizer, VOCABULARY)
    bounds = ReasoningBounds(ends=("<|channel|>final<|message|>",))
    spelled = TOKENIZER.encode("hm<|channel|>final<|message|>")
    for tokens, is_over in ((spelled, False), ([257, *TOKENIZER.encode("final"), 258], True)):
        reasoning = ReasoningTracker(bounds, texts)
        for token in tokens:
            reasoning.advance(token)
        assert reasoning.is_over == is_over


def test_optional_reasoning_starts_only_if_the_model_prefers_it() -> None:
    output: Any = SimpleNamespace(optional=[3, 4])
    row = _StepRow(output, [1], [])
    logits = torch.tensor([[9.0] * 6, [0, 1, 2, 5, 4, 3]])
    ((point, tokens, values),) = preferred_starts(logits, [row])
    assert (point, tokens.tolist(), values.tolist()) == (1, [3, 4], [5, 4])
    logits[1, 0] = 6
    ((_, _, values),) = preferred_starts(logits, [row])
    assert values.tolist() == [-torch.inf] * 2


def test_call_in_place_of_the_answer_is_free() -> None:
    vocabulary = read_vocabulary(TOKENIZER, (256,))
    state: Any = None  # no answer, so no grammar
    bounds = ReasoningBounds(ends=ENDS, calls=("to=functions.",))
    tracker = ReasoningTracker(bounds, TokenTexts(TOKENIZER, vocabulary))
    row = GrammarRow(state, (256,), tracker, TokenMasks(vocabulary))
    row.replay(TOKENIZER.encode("hm to=functions"))
    assert not np.unpackbits(row.mask.view(np.uint8), bitorder="little")[256]
    row.advance(TOKENIZER.encode(".f {}</think>"))
    assert np.unpackbits(row.mask.view(np.uint8), bitorder="little")[:257].all()
    row.settle(len(".f {}</think>"), ())
    assert not np.unpackbits(row.mask.view(np.uint8), bitorder="little")[256]
