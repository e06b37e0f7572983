"""Preempted requests first, then short prompts (`--scheduling-policy second_chance`)."""

from core.api import Entry, hookimpl

EXAMPLE_ORDER = [
    {"num_preemptions": 1, "num_prompt_tokens": 900},
    {"num_prompt_tokens": 5},
    {"num_prompt_tokens": 90},
]


class SecondChance:
    def key(self, request):
        return (-request.num_preemptions, request.num_prompt_tokens, request.arrival_s)


@hookimpl
def engine_scheduling_policies():
    return [Entry("second_chance", SecondChance, "preempted requests first, then short prompts")]
