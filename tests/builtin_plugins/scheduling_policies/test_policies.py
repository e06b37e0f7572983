"""The built-in scheduling policies and the conformance suite of policies."""

import inspect

import pytest

from builtin_plugins.scheduling_policies import fcfs, priority
from core.contracts.scheduling import QueuedRequest
from core.plugin.entry import Entry
from core.testing.conformance import Subject
from core.testing.conformance import scheduling_policies as suite

CHECKS = [
    check
    for name, check in inspect.getmembers(suite, inspect.isfunction)
    if name.startswith("check_")
]


def subject(policy):
    return Subject("scheduling_policies", Entry("policy", policy, "a policy"), policy, builtin=True)


class Unsteady:
    def __init__(self):
        self.calls = 0

    def key(self, request):
        self.calls += 1
        return (float(self.calls),)


class Ragged:
    def key(self, request):
        return (1.0,) * (1 + request.num_preemptions)


class Texts:
    def key(self, request):
        return (request.request_id,)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("policy", [fcfs.FirstCome, priority.Priority])
def test_builtin_policies_pass_conformance_suite(policy, check):
    check(subject(policy))


@pytest.mark.parametrize("policy", [Unsteady, Ragged, Texts])
def test_conformance_suite_rejects_invalid_policies(policy):
    def holds(check):
        try:
            check(subject(policy))
        except AssertionError:
            return False
        return True

    assert not all(holds(check) for check in CHECKS)


@pytest.mark.parametrize("module", [fcfs, priority])
def test_policy_plugins_return_one_entry(module):
    (entry,) = module.engine_scheduling_policies()
    package, _, name = entry.target.partition(":")
    assert package == module.__name__
    assert callable(getattr(module, name))


def test_lower_priority_values_rank_first():
    keys = [priority.Priority().key(QueuedRequest("r", value, 0.0, 1, 0)) for value in (3, -1, 0)]
    assert sorted(keys) == [(-1,), (0,), (3,)]
