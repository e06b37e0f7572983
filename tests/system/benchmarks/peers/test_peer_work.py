"""Prompts of the tasks, and figures from their times."""

from __future__ import annotations

import pytest

from benchmarks.peers.work import FIRST_MS, TASKS, Task, figures, make_prompts


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_prompts_have_their_lengths_and_share_what_they_should(task: Task) -> None:
    prompts = make_prompts(task, 3)
    assert [len(prompt) for prompt in prompts] == [task.shared + task.prompt] * task.requests
    assert len({tuple(prompt[: task.shared]) for prompt in prompts}) == 1
    assert (
        len({tuple(prompt[task.shared : task.shared + 16]) for prompt in prompts}) == task.requests
    )


def test_a_seed_gives_the_same_prompts_and_another_begins_differently() -> None:
    first, again, other = (make_prompts(TASKS["c"], seed) for seed in (1, 1, 2))
    assert first == again
    assert first[0][:16] != other[0][:16]


def test_a_batch_has_a_rate_of_generated_tokens() -> None:
    assert figures(Task("x", "", 32, 128, 64), 16.0) == {"tokens/s": 128.0}


def test_a_prompt_alone_has_a_rate_of_prompt_tokens() -> None:
    assert figures(Task("x", "", 1, 1024, 1), 2.0) == {"prompt tokens/s": 512.0}


def test_decoding_is_what_remains_after_the_first_token() -> None:
    one = figures(Task("x", "", 1, 128, 11, first_alone=True), 3.0, 1.0)
    assert one == {FIRST_MS: 1000.0, "decode, tokens/s": 5.0}
    assert figures(Task("x", "", 16, 128, 11, first_alone=True), 3.0, 1.0) == {
        "decode, tokens/s": 80.0
    }
