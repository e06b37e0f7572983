"""Under a form next to tools, every family may write its calls, and nothing else but the form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xgrammar")
from builtin_plugins.features.structured_outputs.reasoning_tracker import (
    ReasoningTracker,
    TokenTexts,
)
from builtin_plugins.grammar_backends.api import Vocabulary, constraint_of, read_vocabulary
from builtin_plugins.grammar_backends.xgrammar.backend import XGrammar
from builtin_plugins.output_parsers.api import OutputParser, ParseRequest, fit_format
from builtin_plugins.routes.common.tools import form_or_calls, form_or_calls_format
from core.api.sampling import StructuredOutputsParams
from core.plugin import load_plan, make_plan
from core.testing.byte_tokenizer import ByteTokenizer
from tests.builtin_plugins.output_parsers.tools.call_syntaxes import DESCRIBED, SYNTAXES

REGISTRY = load_plan(make_plan(["none", "reasoning_parsers", "tool_parsers"]))
FAMILIES: dict[str, Any] = {
    found.entry.name: fit_format(REGISTRY.load(found), DESCRIBED)
    for found in REGISTRY.entries("tool_parsers")
}
IN_PLACE_OF_THE_ANSWER = {
    "inkling": "inkling",
    "kimi_k3": "kimi_k3",
    "muse": "muse",
    "muse_glimmer": "muse_glimmer",
    "musespark1x": "musespark1x",
    "openai": "openai_gptoss",
}
"""Reasoning parsers of families with calls on channels: see `ReasoningFormat.calls`."""
BY_TEXT = sorted(set(FAMILIES) - set(IN_PLACE_OF_THE_ANSWER))
FEW = ["hermes", "llama3_json", "qwen3_coder", "glm45", "pythonic", "mistral", "kimi_k2"]
ALL = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in BY_TEXT]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "add")
]
CALL = ("get_weather", {"city": "Oslo"})
FORM = '{"a": true}'
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
END = 256


class Output:
    """The grammar of one family, over bytes and special tokens."""

    def __init__(self, name: str, *, special: bool) -> None:
        self.family = FAMILIES[name]
        markers = sorted(self.family.markers, key=len, reverse=True) if special else []
        self.ids = {text: END + 1 + i for i, text in enumerate(markers)}
        tokens = [*(bytes((i,)) for i in range(256)), *([b""] * (1 + len(markers)))]
        form = StructuredOutputsParams(json=SCHEMA)
        params = form_or_calls(form, TOOLS, self.family, self.ids, parallel=True)
        backend = XGrammar(Vocabulary(tokens, (END,)))
        constraint = constraint_of(params)
        XGrammar.check(constraint)
        self._grammar = backend.compile(constraint)
        self._mask = np.zeros(-(-len(tokens) // 32), dtype=np.int32)

    def allows(self, text: str) -> bool:
        """Return whether an output may be the text, token by token, and end after it."""
        state = self._grammar.start()
        for token in [*self._tokens(text), END]:
            state.fill(self._mask)
            if not self._mask[token // 32] >> token % 32 & 1:
                return False
            assert state.accept(token)
        return True

    def _tokens(self, text: str) -> list[int]:
        found: list[int] = []
        while text:
            marker = next((each for each in self.ids if text.startswith(each)), None)
            found += list(text[0].encode()) if marker is None else [self.ids[marker]]
            text = text[len(marker or text[0]) :]
        return found


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("special", [False, True])
def test_family_may_write_its_call_or_the_form(name: str, special: bool) -> None:
    output = Output(name, special=special)
    written = SYNTAXES[name].write(CALL)
    family = output.family
    if family.writes is not None:  # constrained to the family's JSON
        arguments = json.dumps(CALL[1])
        text = family.writes
        one = f"{text.before}{arguments}{text.after}".replace("{name}", CALL[0])
        written = f"{text.start}{one}{text.end}"
    assert output.allows(written)
    assert output.allows(FORM)
    assert not output.allows("Hello.")
    assert not output.allows(f"{FORM} and more")


@pytest.mark.parametrize("name", BY_TEXT)
def test_form_is_content_and_call_is_a_call(name: str) -> None:
    family = form_or_calls_format(FAMILIES[name])
    request = ParseRequest(tools=TOOLS, is_constrained=True)
    call = SYNTAXES[name].write(CALL)
    quoted = json.dumps({"a": f"x {call}"}, ensure_ascii=False)
    for text in (FORM, quoted):
        parsed = OutputParser(request, tools=family, show_special=True).whole(text)
        assert (parsed.content, parsed.calls) == (text, [])
    if FAMILIES[name].writes is None:
        parsed = OutputParser(request, tools=family).whole(call)
        assert [json.loads(each.arguments) for each in parsed.calls] == [CALL[1]]


@pytest.mark.parametrize("name", IN_PLACE_OF_THE_ANSWER)
@pytest.mark.parametrize("thoughts", [True, False])
def test_call_on_a_channel_ends_reasoning_and_is_free(name: str, thoughts: bool) -> None:
    reasoning = REGISTRY.load(REGISTRY.choose("reasoning_parsers", IN_PLACE_OF_THE_ANSWER[name]))
    request = ParseRequest(tools=TOOLS, is_constrained=True)
    tokenizer: Any = ByteTokenizer()
    texts = TokenTexts(tokenizer, read_vocabulary(tokenizer, ()))
    call = SYNTAXES[name].write(CALL)
    tracker = ReasoningTracker(reasoning.bounds(request), texts)
    found = []
    for token in tokenizer.encode(("I should call a tool. " if thoughts else "") + call):
        tracker.advance(token)
        found.append((tracker.is_call, tracker.is_over))
    assert found[0] == (False, False)
    assert found[-1] == (True, False)
    parsed = OutputParser(request, tools=FAMILIES[name], reasoning=reasoning).whole(call)
    assert [json.loads(each.arguments) for each in parsed.calls] == [CALL[1]]
