"""Nothing that is evaluated has been trained on."""

from __future__ import annotations

import pytest

from examples.demo_model.items import held_out
from examples.demo_model.mix import SKILLS, evaluation_items, training_groups, training_items
from examples.demo_model.tasks.small_talk import KNOW_LITTLE

SPLIT = [skill for skill in SKILLS if skill != "small talk"]


@pytest.mark.parametrize("skill", SPLIT)
def test_every_evaluated_item_has_keys_and_all_are_held_out(skill):
    for item in evaluation_items(skill, seed=0, count=100):
        assert item.keys
        assert all(held_out(key) for key in item.keys)


def test_no_key_of_the_training_data_is_held_out():
    items = [item for step in range(40) for item in training_items(0, step, 80)]
    assert {item.skill for item in items} == set(SKILLS)
    assert [key for item in items for key in item.keys if held_out(key)] == []


def test_equal_seeds_give_equal_conversations_and_other_seeds_others():
    first, again, other = (training_items(seed, 7, 40) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_conversations_with_tools_come_three_at_a_time_to_the_same_ones():
    groups = [group for group in training_groups(0, 3, 80) if group[0].skill == "tools"]
    assert len(groups) > 5
    assert all(len(group) == 3 for group in groups[:-1])
    assert all(item.tools == group[0].tools for group in groups for item in group)
    assert sum(map(len, training_groups(0, 3, 80))) == 80


def test_no_evaluated_question_stands_in_the_training_data():
    trained = {
        (item.skill, str(item.messages), str(item.tools))
        for step in range(40)
        for item in training_items(0, step, 80)
    }
    for skill in SPLIT:
        asked = {
            (skill, str(item.messages), str(item.tools))
            for item in evaluation_items(skill, seed=0, count=100)
        }
        assert not asked & trained


def test_the_model_admits_that_it_knows_little():
    items = [
        item for item in evaluation_items("small talk", seed=0, count=40) if item.variant == "world"
    ]
    assert items
    assert {item.answer for item in items} == {KNOW_LITTLE}
