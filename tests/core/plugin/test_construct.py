"""Constructor arguments of entries: each gets those that it declares."""

from __future__ import annotations

from typing import Any

import pytest

from core import LLM, SamplingParams
from core.config.build import config_from_kwargs
from core.plugin.entry import construct
from core.testing.plugins import load_plugins, tmp_plugin


class Two:
    def __init__(self, first: Any, second: Any = "default") -> None:
        self.given = (first, second)


class All:
    def __init__(self, *given: Any) -> None:
        self.given = given


class Keyword:
    def __init__(self, first: Any, *, second: Any = "default") -> None:
        self.given = (first, second)


@pytest.mark.parametrize(
    ("target", "given"),
    [
        (Two, (1, 2)),
        (All, (1, 2, 3)),
        (Keyword, (1, "default")),
        (lambda: All(), ()),
        (lambda first: All(first), (1,)),
    ],
)
def test_target_gets_the_arguments_it_accepts(target: Any, given: tuple[Any, ...]) -> None:
    assert construct(target, 1, 2, 3).given == given


CONFIGURED = """
from core.api import Entry, Option, hookimpl

class Newest:
    def __init__(self, config):
        assert config.options["acme_depth"] == 7, config.options
    def key(self, request):
        return (-request.arrival_s,)

class Bans:
    params = ()
    argmax_invariant = False
    def __init__(self, context, config):
        self.banned = config.options["acme_depth"]
    def wants(self, sampling):
        return True
    def added(self, row, sampling, token_ids, prompt_len):
        pass
    def removed(self, row):
        pass
    def apply(self, logits, rows):
        logits[:, ord("a")] = float("-inf") if self.banned == 7 else 0
        return logits

class Mean:
    whole, per_token = True, False
    def __init__(self, config):
        self.times = config.options["acme_depth"]
    def pool(self, hidden, token_ids, params):
        return hidden.mean(0, keepdim=True) * self.times

@hookimpl
def engine_options():
    return [Option("acme_depth", int, 3, "How deep.")]

@hookimpl
def engine_scheduling_policies():
    return [Entry("newest", Newest, "the newest first")]

@hookimpl
def engine_logits_processors():
    return [Entry("bans", Bans, "bans a letter")]

@hookimpl
def engine_poolers():
    return [Entry("scaled", Mean, "the mean, scaled")]
"""


def test_policies_and_processors_get_the_config() -> None:
    with tmp_plugin(CONFIGURED, name="acme") as path:
        keywords: dict[str, Any] = {
            "scheduling_policy": "newest",
            "acme_depth": 7,
            "log_level": "error",
        }
        with LLM("scripted:", plugins=[f"+{path}"], **keywords) as llm:
            found = llm.generate(
                "banana", SamplingParams(temperature=0, max_tokens=3), use_tqdm=False
            )
    assert "a" not in found[0].outputs[0].text


def test_registry_passes_the_config() -> None:
    with tmp_plugin(CONFIGURED, name="acme") as path:
        registry = load_plugins(path)
        config = config_from_kwargs({"acme_depth": 7}, registry.options())
        pooler, _ = registry.make(registry.choose("poolers", "scaled"), config)
        assert pooler.times == 7
