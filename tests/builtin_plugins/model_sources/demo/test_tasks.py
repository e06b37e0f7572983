"""The generated answers are right."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.demo_model.chat import completion
from examples.demo_model.everyday import EVERYDAY, everyday_tool
from examples.demo_model.grading import right
from examples.demo_model.items import Draw
from examples.demo_model.mix import SKILLS, evaluation_items
from examples.demo_model.tasks import json_extract, lists, tools
from examples.demo_model.tasks.arithmetic import added, subtracted

NUMBERS = st.integers(0, 999)


@given(NUMBERS, NUMBERS)
def test_addition_reasoning_ends_with_its_result(a, b):
    assert int(added(a, b).rsplit(": ", 1)[1]) == a + b


@given(NUMBERS, NUMBERS)
def test_subtraction_reasoning_ends_with_its_result(a, b):
    thought = subtracted(a, b)
    result = int(thought.rsplit(": ", 1)[1])
    assert (-result if a < b else result) == a - b


def test_arithmetic_reasoning_uses_carries_and_borrows():
    assert added(347, 285).splitlines() == ["7+5=12: 2", "4+8+1=13: 32", "3+2+1=6: 632"]
    assert subtracted(632, 285).splitlines() == [
        "2-5=-3+10=7: 7",
        "3-8-1=-6+10=4: 47",
        "6-2-1=3: 347",
    ]
    assert subtracted(7, 12).splitlines() == ["7<12: -(12-7)", "2-7=-5+10=5: 5", "1-0-1=0: 05"]


def test_list_operations():
    words = ["pear", "apple", "fig"]
    assert lists.done("copy", words) == words
    assert lists.done("reverse", words) == ["fig", "apple", "pear"]
    assert lists.done("sort", words) == ["apple", "fig", "pear"]
    assert lists.done("upper-case", words) == ["PEAR", "APPLE", "FIG"]


@pytest.mark.parametrize("skill", SKILLS)
def test_grading_accepts_the_right_answer_only(skill):
    for item in evaluation_items(skill, seed=1, count=30):
        assert right(item, completion(item))
        assert not right(item, completion(item) + " and more")
        assert not right(item, "")


def test_extracted_values_are_in_the_sentence():
    draw = Draw(random.Random(3), evaluation=False)
    for _ in range(100):
        item = json_extract.make(draw)
        assert all(
            str(value) in item.messages[0]["content"] for value in json.loads(item.answer).values()
        )


def test_calls_match_the_tool_schemas():
    draw = Draw(random.Random(4), evaluation=False)
    kinds = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "array": (list,),
    }
    for _ in range(200):
        item = tools.make(draw, draw.one(("one", "two")))
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item.tools}
        for call in item.calls:
            schema = offered[call["name"]]
            assert (
                set(schema.get("required", ()))
                <= set(call["arguments"])
                <= set(schema["properties"])
            )
            for name, value in call["arguments"].items():
                assert type(value) in kinds[schema["properties"][name]["type"]]
                assert value in schema["properties"][name].get("enum", [value])


def test_every_everyday_tool_has_single_and_double_requests():
    draw = Draw(random.Random(5), evaluation=False)
    requested = set()
    for _ in range(20 * len(EVERYDAY)):
        tool = everyday_tool(draw)
        properties = tool.schema["function"]["parameters"]["properties"]
        wording, (arguments,) = tool.make_request(draw)
        _, both = tool.make_double_request(draw)
        assert len(both) == 2
        assert all(set(given) <= set(properties) for given in (arguments, *both))
        assert all(
            str(value) in wording for value in arguments.values() if type(value) in (str, int)
        )
        requested.add(tool.topics + tool.fields)
    assert len(requested) == len(EVERYDAY)


def test_double_question_repeats_its_end():
    draw = Draw(random.Random(6), evaluation=False)
    tool = next(
        tool for tool in iter(lambda: everyday_tool(draw), None) if "weather" in tool.topics
    )
    wording = {tool.make_double_request(draw)[0] for _ in range(200)}
    assert any(
        text.count("what is the weather") == 1 and text.count(" in ") == 2 for text in wording
    )


def test_unanswerable_requests_match_no_tool():
    draw = Draw(random.Random(7), evaluation=False)
    for _ in range(300):
        item = tools.make(draw, "none")
        about = {
            word
            for tool in item.tools
            for word in tool["function"].get("description", "").lower().rstrip(".").split()
        }
        if "weather" in about:
            assert "weather" not in item.messages[-1]["content"].lower()
