"""Rows that sample at several points: each has a mask of its own, and only what was kept moves the
grammar on.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("xgrammar")
from builtin_plugins.features.structured_outputs.keepers import Keepers
from builtin_plugins.features.structured_outputs.masks import MaskMaker
from builtin_plugins.features.structured_outputs.news import Failed, News, Prepare, Told
from builtin_plugins.features.structured_outputs.nursery import Threads
from builtin_plugins.features.structured_outputs.rows import TokenMasks
from builtin_plugins.grammar_backends.xgrammar.backend import XGrammar
from core.api import Constraint, StructuredOutputsParams, Vocabulary
from core.testing.byte_tokenizer import ByteTokenizer

END = 256
VOCABULARY = Vocabulary((*(bytes([i]) for i in range(256)), b"", b""), (END,))
PROMPT = 3
ROW = 2
FREE = 0
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[Told]).decode


class OneBackend:
    """What masks are made with, of one backend."""

    tokenizer = ByteTokenizer()
    vocabulary = VOCABULARY
    masks = TokenMasks(VOCABULARY)

    def __init__(self, reasoning: Any) -> None:
        self.reasoning = reasoning

    def backend(self, name: str) -> XGrammar:
        return XGrammar(VOCABULARY)

    def backend_class(self, name: str) -> type[XGrammar]:
        return XGrammar


@dataclass
class Points:
    """`SampleRows` of rows that sample at several points each."""

    rows: list[int]
    lengths: list[int]
    row_index: torch.Tensor
    length_index: torch.Tensor
    token_ids: torch.Tensor
    points: list[int]
    errors: dict[int, str] = field(default_factory=dict)


class Output:
    """One constrained row, stepped by hand beside a free one."""

    def __init__(
        self, constraint: Constraint, *, slack: int = 0, stops: Any = (), reasoning: Any = ((), ())
    ) -> None:
        """`slack`: how much longer the host thinks the row may be than it is."""
        config: Any = SimpleNamespace(options={})
        tools: Any = OneBackend(reasoning)
        self.told: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.masks = MaskMaker(Keepers(config, None, Threads(tools)))
        self.masks.begin_with(self.told.put)
        self.token_ids = torch.zeros(4, 200, dtype=torch.int64)
        self.length = PROMPT
        self._slack = slack
        kind = {
            constraint.kind: json.loads(constraint.text)
            if constraint.kind == "choice"
            else constraint.text
        }
        params = StructuredOutputsParams(**kind, backend="xgrammar")
        self.masks.after_sample(
            _encode(News(soon=[Prepare("r", params, PROMPT, [], [], [END, *stops])]))
        )
        assert _decode(self.told.get())  # its first mask is there
        self.masks.before_forward(None, _encode(News(new=[(ROW, "r")])))  # type: ignore[arg-type]

    def step(self, guesses: list[int]) -> tuple[list[set[int]], Points]:
        """Return which tokens may come at each point."""
        self.token_ids[ROW, self.length : self.length + len(guesses)] = torch.tensor(
            guesses, dtype=torch.int64
        )
        numbers = [*range(len(guesses) + 1)]
        exact = [9, *(self.length + i for i in numbers)]
        said = [
            9,
            *(self.length + i + (self._slack if self.length > PROMPT else 0) for i in numbers),
        ]
        rows = [FREE, *[ROW] * len(numbers)]
        given = Points(
            rows, said, torch.tensor(rows), torch.tensor(exact), self.token_ids, [0, *numbers]
        )
        logits = self.masks.before_sample(torch.zeros(len(rows), 258), given, None)  # type: ignore[arg-type]
        assert logits[0].isfinite().all()
        return [set(torch.nonzero(row > float("-inf"))[:, 0].tolist()) for row in logits[1:]], given

    def keep(self, sampled: list[int], kept: int) -> None:
        """Sample these, of which so many are kept."""
        self.token_ids[ROW, self.length : self.length + len(sampled)] = torch.tensor(sampled)
        self.said = self.masks.after_sample(None)
        self.length += kept


REGEX = Constraint("regex", "ab(c|d)e[0-9]{3}")
A, B, C, D, E = b"abcde"


Begin = Callable[..., Output]


@pytest.fixture
def begin() -> Iterator[Begin]:
    outputs: list[Output] = []

    def make(*arguments: Any, **given: Any) -> Output:
        outputs.append(Output(*arguments, **given))
        return outputs[-1]

    yield make
    for output in outputs:
        output.masks.close()


@pytest.mark.parametrize("slack", [0, 2])
def test_each_point_has_the_mask_behind_its_guesses(begin: Begin, slack: int) -> None:
    output = begin(REGEX, slack=slack)
    assert output.step([A, B, C])[0] == [{A}, {B}, {C, D}, {E}]
    output.keep([A, B, D, E], 3)  # the last guess was wrong
    assert output.step([E])[0] == [{E}, set(b"0123456789")]
    output.keep([E, ord("5")], 2)
    assert output.step([])[0] == [set(b"0123456789")]


def test_behind_a_guess_that_may_not_come_nothing_is_excluded(begin: Begin) -> None:
    output = begin(REGEX)
    allowed = output.step([A, A, B])[0]
    assert allowed[:2] == [{A}, {B}]
    assert [len(rest) for rest in allowed[2:]] == [258, 258]
    output.keep([A, B, 0, 0], 2)
    assert output.step([])[0] == [{C, D}]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_whatever_a_verifier_keeps_is_where_the_grammar_goes_on(begin: Begin, kept: int) -> None:
    output = begin(REGEX)
    output.step([A, B, C])
    output.keep([A, B, C, E], kept)  # all were right, and some were refused nevertheless
    assert output.step([])[0] == [[{B}, {C, D}, {E}][kept - 1]]


def test_a_verifier_may_keep_more_than_was_equal(begin: Begin) -> None:
    output = begin(REGEX)
    output.step([A, B, C])
    output.keep([A, B, D, E], 4)
    assert output.step([])[0] == [set(b"0123456789")]


def test_guesses_behind_the_end_allow_the_end_alone(begin: Begin) -> None:
    output = begin(Constraint("choice", json.dumps(["a"])))
    assert output.step([A, END])[0] == [{A}, {END}, {END}]
    output.keep([A, END, END], 2)
    assert output.step([])[0] == [{END}]


def test_guesses_lead_through_the_end_of_thoughts_and_back(begin: Begin) -> None:
    output = begin(Constraint("regex", "ab"), reasoning=((), ("</t>",)))
    marker = list(b"</t>")
    allowed = output.step([*marker, A])[0]
    assert [len(tokens) for tokens in allowed] == [257, 257, 257, 257, 1, 1]
    assert allowed[4:] == [{A}, {B}]
    output.keep([marker[0], 7, 7, 7, 7, 7], 2)
    assert [len(tokens) for tokens in output.step([])[0]] == [257]


def test_a_stop_token_outside_of_the_grammar_may_be_guessed(begin: Begin) -> None:
    output = begin(Constraint("regex", "ab?"), stops=[257])
    assert output.step([A, 257, B])[0] == [{A}, {B, END, 257}, {B, END, 257}, {END, 257}]
    output.keep([A, B, 0, 0], 2)
    assert output.step([])[0] == [{END, 257}]


def test_a_fault_behind_a_guess_costs_its_row_alone(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = begin(REGEX)
    output.step([])
    output.keep([A], 1)
    output.step([])

    def fail(self: Any, token: int) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr("builtin_plugins.features.structured_outputs.rows.Row._take", fail)
    allowed, _ = output.step([B])
    assert [len(tokens) for tokens in allowed] == [258, 258]
    output.keep([B, C], 2)
    (failed,) = _decode(output.said or b"")
    assert isinstance(failed, Failed)
    assert (
        failed.fault.message
        == "structured_outputs.regex: xgrammar has failed at this request: broken"
    )
