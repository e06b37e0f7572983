"""What every scheduling policy must pass."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

from core.contracts.scheduling import QueuedRequest
from core.plugin.entry import construct
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_constructs_with_the_configuration_or_without(subject: Subject) -> None:
    """The engine makes a policy from its class, given the configuration where it takes an
    argument.
    """
    _make(subject)


def check_key_is_a_tuple_of_finite_numbers(subject: Subject) -> None:
    """Keys are compared with each other, so nothing but numbers may stand in them, and no NaN."""
    for request in _requests():
        key = _make(subject).key(request)
        assert isinstance(key, tuple), f"key({request}) returned {key!r}; return a tuple of numbers"
        for number in key:
            good = isinstance(number, (int, float)) and math.isfinite(number)
            assert good, f"key({request}) holds {number!r}; every element must be a finite number"


def check_keys_have_one_length(subject: Subject) -> None:
    """A shorter key would rank before a longer one by accident."""
    lengths = {len(_make(subject).key(request)) for request in _requests()}
    assert len(lengths) == 1, (
        f"keys have different lengths {sorted(lengths)}; return the same elements for all"
    )


def check_key_is_pure(subject: Subject) -> None:
    """The same facts give the same key, in any order and however often called; replay depends on
    it.
    """
    policy = _make(subject)
    other = _make(subject)
    requests = _requests()
    first = [policy.key(request) for request in requests]
    again = [policy.key(request) for request in reversed(requests)][::-1]
    assert first == again, "asking twice gave another key; a policy must keep no state"
    assert first == [other.key(request) for request in requests], (
        "a second instance gave another key"
    )


def check_runs_requests_in_the_order_it_states(subject: Subject) -> None:
    """Of requests that wait together the one with the smallest key runs first; ties go by arrival.

    `EXAMPLE_ORDER` has fields of `QueuedRequest`, of those that run first before the others; those
    left out are alike.
    """
    form = 'EXAMPLE_ORDER = [{"num_prompt_tokens": 3}, {"num_prompt_tokens": 90}]'
    stated = examples(subject, form, "EXAMPLE_ORDER")
    alike = {"priority": 0, "arrival_s": 10.0, "num_prompt_tokens": 8, "num_preemptions": 0}
    policy = _make(subject)
    requests = [QueuedRequest(f"r{i}", **{**alike, **fields}) for i, fields in enumerate(stated)]
    for waiting in (requests, requests[::-1]):
        found = sorted(waiting, key=lambda request: (policy.key(request), request.request_id))
        order = [stated[requests.index(request)] for request in found]
        assert found == requests, (
            f"{subject.entry.name}: requests run in the order {order}, EXAMPLE_ORDER is {stated}."
        )


def _make(subject: Subject) -> Any:
    target: Any = subject.target
    return construct(target, subject.config)


def _requests() -> list[QueuedRequest]:
    facts = product((-(2**31), 0, 3), (0.0, 1.5e9), (1, 131_072), (0, 7))
    return [QueuedRequest(f"r{i}", *values) for i, values in enumerate(facts)]
