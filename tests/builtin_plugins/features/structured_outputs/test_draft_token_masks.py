"""Masks of rows with draft tokens: one per sampling point, advanced by accepted tokens only."""

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
from builtin_plugins.features.structured_outputs.compiler_pool import ThreadPool
from builtin_plugins.features.structured_outputs.grammar_pool import GrammarProcessPool
from builtin_plugins.features.structured_outputs.grammar_row import TokenMasks
from builtin_plugins.features.structured_outputs.messages import (
    MaskFailed,
    MaskMessage,
    PrepareMask,
    StepChanges,
)
from builtin_plugins.features.structured_outputs.reasoning_tracker import TokenTexts
from builtin_plugins.features.structured_outputs.worker import MaskWorker
from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from builtin_plugins.grammar_backends.xgrammar.backend import XGrammar
from builtin_plugins.output_parsers.api import ReasoningFormat
from core.api.sampling import StructuredOutputsParams
from core.testing.byte_tokenizer import ByteTokenizer

END = 256
VOCABULARY = Vocabulary((*(bytes([i]) for i in range(256)), b"", b""), (END,))
PROMPT = 3
ROW = 2
FREE = 0
READ: Any = None  # parses no output here
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[MaskMessage]).decode


class OneBackend:
    """Grammar resources with one backend."""

    tokenizer = ByteTokenizer()
    vocabulary = VOCABULARY
    masks = TokenMasks(VOCABULARY)
    texts = TokenTexts(ByteTokenizer(), VOCABULARY)  # type: ignore[arg-type]

    def __init__(self, reasoning: ReasoningFormat | None) -> None:
        self.reasoning = reasoning

    def backend(self, name: str) -> XGrammar:
        return XGrammar(VOCABULARY)

    def backend_class(self, name: str) -> type[XGrammar]:
        return XGrammar


@dataclass
class PointRows:
    """`SampleRows` of rows with several sampling points each."""

    rows: list[int]
    lengths: list[int]
    row_index: torch.Tensor
    length_index: torch.Tensor
    token_ids: torch.Tensor
    points: list[int]
    errors: dict[int, str] = field(default_factory=dict)


class Output:
    """One constrained row, stepped by hand next to an unconstrained one."""

    def __init__(
        self,
        constraint: Constraint,
        *,
        slack: int = 0,
        stops: Any = (),
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        """`slack`: number of tokens by which the host overestimates the row's length."""
        config: Any = SimpleNamespace(options={})
        resources: Any = OneBackend(reasoning)
        self.messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.masks = MaskWorker(GrammarProcessPool(config, None, ThreadPool(resources)))
        self.masks.begin_with(self.messages.put)
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
            _encode(StepChanges(soon=[PrepareMask("r", params, PROMPT, [], [], [END, *stops])]))
        )
        assert _decode(self.messages.get())  # its first mask is ready
        changes = _encode(StepChanges(new=[(ROW, "r")]))
        self.masks.before_forward(None, changes)  # type: ignore[arg-type]

    def step(self, draft_tokens: list[int]) -> tuple[list[set[int]], PointRows]:
        """Return the allowed tokens at each point."""
        self.token_ids[ROW, self.length : self.length + len(draft_tokens)] = torch.tensor(
            draft_tokens, dtype=torch.int64
        )
        numbers = [*range(len(draft_tokens) + 1)]
        exact = [9, *(self.length + i for i in numbers)]
        lengths = [
            9,
            *(self.length + i + (self._slack if self.length > PROMPT else 0) for i in numbers),
        ]
        rows = [FREE, *[ROW] * len(numbers)]
        given = PointRows(
            rows, lengths, torch.tensor(rows), torch.tensor(exact), self.token_ids, [0, *numbers]
        )
        zeros = torch.zeros(len(rows), 258)
        logits = self.masks.before_sample(zeros, given, None)  # type: ignore[arg-type]
        assert logits[0].isfinite().all()
        return [set(torch.nonzero(row > float("-inf"))[:, 0].tolist()) for row in logits[1:]], given

    def accept(self, sampled: list[int], accepted: int) -> None:
        """Sample these tokens, of which `accepted` are accepted."""
        self.token_ids[ROW, self.length : self.length + len(sampled)] = torch.tensor(sampled)
        self.reply = self.masks.after_sample(None)
        self.length += accepted


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
def test_each_point_has_the_mask_after_its_draft_tokens(begin: Begin, slack: int) -> None:
    output = begin(REGEX, slack=slack)
    assert output.step([A, B, C])[0] == [{A}, {B}, {C, D}, {E}]
    output.accept([A, B, D, E], 3)  # the last draft token was wrong
    assert output.step([E])[0] == [{E}, set(b"0123456789")]
    output.accept([E, ord("5")], 2)
    assert output.step([])[0] == [set(b"0123456789")]


def test_forbidden_draft_token_allows_everything_after_it(begin: Begin) -> None:
    output = begin(REGEX)
    allowed = output.step([A, A, B])[0]
    assert allowed[:2] == [{A}, {B}]
    assert [len(rest) for rest in allowed[2:]] == [258, 258]
    output.accept([A, B, 0, 0], 2)
    assert output.step([])[0] == [{C, D}]


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_grammar_resumes_after_the_accepted_tokens(begin: Begin, accepted: int) -> None:
    output = begin(REGEX)
    output.step([A, B, C])
    output.accept([A, B, C, E], accepted)  # all were right, but some were rejected
    assert output.step([])[0] == [[{B}, {C, D}, {E}][accepted - 1]]


def test_verifier_may_accept_differing_tokens(begin: Begin) -> None:
    output = begin(REGEX)
    output.step([A, B, C])
    output.accept([A, B, D, E], 4)
    assert output.step([])[0] == [set(b"0123456789")]


def test_only_the_end_is_allowed_after_the_end(begin: Begin) -> None:
    output = begin(Constraint("choice", json.dumps(["a"])))
    assert output.step([A, END])[0] == [{A}, {END}, {END}]
    output.accept([A, END, END], 2)
    assert output.step([])[0] == [{END}]


def test_draft_tokens_cross_the_end_of_reasoning_and_roll_back(begin: Begin) -> None:
    output = begin(Constraint("regex", "ab"), reasoning=ReasoningFormat(READ, ends=("</t>",)))
    marker = list(b"</t>")
    allowed = output.step([*marker, A])[0]
    assert [len(tokens) for tokens in allowed] == [257, 257, 257, 257, 1, 1]
    assert allowed[4:] == [{A}, {B}]
    output.accept([marker[0], 7, 7, 7, 7, 7], 2)
    assert [len(tokens) for tokens in output.step([])[0]] == [257]


def test_stop_token_outside_of_the_grammar_may_be_drafted(begin: Begin) -> None:
    output = begin(Constraint("regex", "ab?"), stops=[257])
    assert output.step([A, 257, B])[0] == [{A}, {B, END, 257}, {B, END, 257}, {END, 257}]
    output.accept([A, B, 0, 0], 2)
    assert output.step([])[0] == [{END, 257}]


def test_failure_after_draft_token_fails_its_row_only(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = begin(REGEX)
    output.step([])
    output.accept([A], 1)
    output.step([])

    def fail(self: Any, token: int) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr(
        "builtin_plugins.features.structured_outputs.grammar_row.GrammarRow._advance", fail
    )
    allowed, _ = output.step([B])
    assert [len(tokens) for tokens in allowed] == [258, 258]
    output.accept([B, C], 2)
    (failed,) = _decode(output.reply or b"")
    assert isinstance(failed, MaskFailed)
    assert (
        failed.fault.message == "structured_outputs.regex: xgrammar failed for this request: broken"
    )


def test_start_marker_that_may_be_an_answer_is_decided_by_later_tokens(begin: Begin) -> None:
    form = ReasoningFormat(READ, starts=("<t>",), ends=("</t>",))
    constraint = Constraint("regex", "<(tool|u)>")
    less, t, o, more = b"<to>"

    output = begin(constraint, reasoning=form)
    points, _ = output.step([less, t, o])
    assert points == [{less}, {t, ord("u")}, {o, more}, {o}]  # an answer with its third token
    points, _ = output.step([less, t, more, *b"x</t>", less])
    assert points[:3] == [{less}, {t, ord("u")}, {o, more}]
    assert len(points[3]) > 200  # in reasoning
    assert points[-2:] == [{less}, {t, ord("u")}]  # after it, from the grammar's start
    output.accept([*b"<t>xy"], 5)
    points, _ = output.step([*b"</t><u>"])
    assert points[4:] == [{less}, {t, ord("u")}, {more}, {END}]
