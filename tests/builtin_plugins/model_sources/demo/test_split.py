"""Evaluation items are never training items."""

from __future__ import annotations

import pytest

from examples.demo_model.items import held_out
from examples.demo_model.mix import SKILLS, evaluation_items, training_groups, training_items
from examples.demo_model.tasks.small_talk import KNOW_LITTLE

SPLIT = [skill for skill in SKILLS if skill != "small talk"]


@pytest.mark.parametrize("skill", SPLIT)
def test_evaluation_items_only_have_held_out_keys(skill):
    for item in evaluation_items(skill, seed=0, count=100):
        assert item.keys
        assert all(held_out(key) for key in item.keys)


def test_training_items_have_no_held_out_key():
    items = [item for step in range(40) for item in training_items(0, step, 80)]
    assert {item.skill for item in items} == set(SKILLS)
    assert [key for item in items for key in item.keys if held_out(key)] == []


def test_conversations_depend_on_the_seed_only():
    first, again, other = (training_items(seed, 7, 40) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_tool_conversations_come_in_groups_of_three():
    groups = [group for group in training_groups(0, 3, 80) if group[0].skill == "tools"]
    assert len(groups) > 5
    assert all(len(group) == 3 for group in groups[:-1])
    assert all(item.tools == group[0].tools for group in groups for item in group)
    assert sum(map(len, training_groups(0, 3, 80))) == 80


def test_training_data_contains_no_evaluation_question():
    trained = {
        (item.skill, str(item.messages), str(item.tools))
        for step in range(40)
        for item in training_items(0, step, 80)
    }
    for skill in SPLIT:
        questions = {
            (skill, str(item.messages), str(item.tools))
            for item in evaluation_items(skill, seed=0, count=100)
        }
        assert not questions & trained


def test_world_questions_get_the_standard_answer():
    items = [
        item for item in evaluation_items("small talk", seed=0, count=40) if item.variant == "world"
    ]
    assert items
    assert {item.answer for item in items} == {KNOW_LITTLE}
