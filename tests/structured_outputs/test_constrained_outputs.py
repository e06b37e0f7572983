"""Outputs of a random model are of the form asked for: alone and among others, scheduled ahead, preempted, resumed."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from core import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from core.api import Constraint, Grammar, InvalidRequest, Vocabulary

pytest.importorskip("xgrammar")
CHOICES = ["yes", 'no "thanks"', "été\n"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}


def is_person(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "age"} and len(value["name"]) <= 8 and 0 <= value["age"] <= 150


EXAMPLES: list[tuple[dict[str, Any], Callable[[str], Any]]] = [
    ({"json": PERSON, "disable_any_whitespace": True}, is_person),
    ({"json": json.dumps({**PERSON, "additionalProperties": False})}, is_person),
    ({"regex": r"\d{3}-[a-z]{1,9}@x\.com"}, re.compile(r"\d{3}-[a-z]{1,9}@x\.com").fullmatch),
    ({"choice": CHOICES}, CHOICES.__contains__),
    ({"grammar": 'root ::= "(" root ")" | [0-9]'}, re.compile(r"\(*[0-9]\)*").fullmatch),
]


def constrained(temperature: float = 1.0, seed: int = 0, **given: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=100, temperature=temperature, seed=seed, structured_outputs=StructuredOutputsParams(**given)
    )


def texts(outputs: list[RequestOutput]) -> list[str]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].text for output in outputs]


def complete(outputs: list[RequestOutput]) -> list[str]:
    """Return the texts of the outputs that ended by themselves: the others may lack their end."""
    return [text for output, text in zip(outputs, texts(outputs), strict=True) if not cut(output)]


def cut(output: RequestOutput) -> bool:
    return output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(("given", "matches"), EXAMPLES, ids=lambda value: str(value)[:20])
def test_outputs_are_of_the_form_asked_for(llm: LLM, given: dict[str, Any], matches: Callable[[str], Any]) -> None:
    params = [constrained(0.0, **given), *(constrained(1.0, seed, **given) for seed in range(3))]
    found = complete(llm.generate(["x"] * len(params), params, use_tqdm=False))
    assert found
    assert [text for text in found if not matches(text)] == []


def test_neighbours_are_not_touched(llm: LLM) -> None:
    free = SamplingParams(max_tokens=20, temperature=0.0)
    alone = texts(llm.generate(["abc"], free, use_tqdm=False))
    among = texts(llm.generate(["x", "abc", "y"], [constrained(**EXAMPLES[0][0]), free, free], use_tqdm=False))
    assert among[1] == alone[0]


def test_scheduling_ahead_changes_no_token(llm: LLM, open_llm: Callable[..., LLM]) -> None:
    params = [constrained(1.0, seed, **given) for seed, (given, _) in enumerate(EXAMPLES)]
    params.insert(2, SamplingParams(max_tokens=30, temperature=1.0, seed=9))
    ahead = open_llm(async_scheduling=True)
    prompts = ["one", "two", "three", "four", "five", "six"]
    assert texts(ahead.generate(prompts, params, use_tqdm=False)) == texts(
        llm.generate(prompts, params, use_tqdm=False)
    )


def test_preempted_requests_go_on_in_their_grammar(llm: LLM, open_llm: Callable[..., LLM]) -> None:
    params = [constrained(1.0, seed, json=PERSON, disable_any_whitespace=True) for seed in range(4)]
    tight = open_llm(num_gpu_blocks_override=8, max_model_len=100)
    prompts = [f"a longer prompt {i}" for i in range(4)]
    outputs = tight.generate(prompts, [p.clone(max_tokens=50) for p in params], use_tqdm=False)
    assert tight.core.scheduler.num_preemptions > 0
    roomy = llm.generate(prompts, [p.clone(max_tokens=50) for p in params], use_tqdm=False)
    assert texts(outputs) == texts(roomy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"json": {"type": "objekt"}}, "structured_outputs.json: .*objekt"),
        ({"json": {"not": {}}}, "structured_outputs.json: xgrammar cannot hold outputs to not"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"regex": "("}, "structured_outputs.regex: .*parenthesis"),
        ({"grammar": "nonsense"}, "structured_outputs.grammar: "),
    ],
)
def test_what_no_backend_can_hold_is_refused(open_llm: Callable[..., LLM], given: Any, message: str) -> None:
    llm = open_llm(structured_outputs_config={"backend": "xgrammar"})
    with pytest.raises(InvalidRequest, match=message):
        llm.generate("x", constrained(**given))


def test_equal_constraints_are_compiled_once(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm()
    llm.generate(["x"] * 4, constrained(choice=["a", "b"]), use_tqdm=False)
    grammars = llm._front.registry.shared("structured_outputs", lambda: None)
    assert grammars.num_compiled == 1


def test_a_mask_that_leaves_nothing_ends_its_request_alone(llm: LLM) -> None:
    params = [constrained(choice=["a"]).clone(allowed_token_ids=[5]), SamplingParams(max_tokens=3)]
    failed, fine = llm.generate(["x", "x"], params, use_tqdm=False)
    assert "structured_outputs" in (failed.error or "")
    assert fine.error is None


class Slow:
    """A backend that compiles until it is let go; broken, if asked to."""

    release = threading.Event()

    def __init__(self, vocabulary: Vocabulary) -> None:
        pass

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Take everything."""

    def compile(self, constraint: Constraint) -> Grammar:
        self.release.wait(20)
        raise ValueError("no grammar today")


@pytest.fixture
def slow_llm(open_llm: Callable[..., LLM], tmp_path: Any) -> LLM:
    Slow.release.clear()
    file = tmp_path / "slow_backend.py"
    file.write_text(
        "from core.api import Entry, hookimpl\nimport sys\n\n@hookimpl\ndef engine_grammar_backends():\n"
        f"    return [Entry('slow', sys.modules[{__name__!r}].Slow, 'slow')]\n"
    )
    config = {"backend": "slow", "compile_timeout_s": 2.0}
    return open_llm(plugins=[str(file)], structured_outputs_config=config)


def test_compiling_holds_up_nobody_and_its_failure_costs_one_request(slow_llm: LLM) -> None:
    slow_llm.add_request("waits", "x", constrained(choice=["a"]))
    slow_llm.add_request("runs", "x", SamplingParams(max_tokens=5))
    outputs = [output for _ in range(8) for output in slow_llm.step() if output.finished]
    assert [output.request_id for output in outputs] == ["runs"]
    Slow.release.set()
    while slow_llm.has_unfinished_requests():
        outputs += slow_llm.step()
    assert "no grammar today" in (outputs[-1].error or "")


def test_a_compilation_that_takes_too_long_is_given_up(slow_llm: LLM) -> None:
    started = time.monotonic()
    output = slow_llm.generate("x", constrained(regex="a"), use_tqdm=False)[0]
    assert "takes longer than 2 s to compile" in (output.error or "")
    assert time.monotonic() - started < 15
    Slow.release.set()


def test_an_aborted_request_leaves_nothing_waiting(slow_llm: LLM) -> None:
    slow_llm.add_request("gone", "x", constrained(choice=["z"]))
    slow_llm.step()
    slow_llm.abort("gone")
    assert not slow_llm.has_unfinished_requests()
    Slow.release.set()
