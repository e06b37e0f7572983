"""`--speculative-config`: what it takes, and what it says against the rest."""

from __future__ import annotations

from typing import Any

import pytest

from builtin_plugins.speculators.settings import settings_of
from core.api import ConfigError, SpeculativeConfig
from core.config.build import config_from_kwargs
from core.engine.front import load_from_kwargs
from core.plugin import load_plan, make_plan


@pytest.fixture(scope="module")
def options() -> Any:
    return list(load_plan(make_plan()).options())


def read(given: Any, options: Any, **more: Any) -> SpeculativeConfig | None:
    return settings_of(config_from_kwargs({"model": "demo", "speculative_config": given, **more}, options))


def test_defaults_and_names_of_methods(options: Any) -> None:
    assert read(None, options) is None
    found = read({"method": "ngram"}, options)
    assert found is not None
    assert (found.most, found.lookup) == (5, (2, 5))
    assert read({"model": "[ngram]", "prompt_lookup_max": 4}, options).lookup == (2, 4)  # type: ignore[union-attr]
    assert SpeculativeConfig("ngram", prompt_lookup_min=7).lookup == (7, 7)
    assert SpeculativeConfig("ngram", prompt_lookup_max=1).lookup == (1, 1)
    assert read({"method": "suffix"}, options).most == 24  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, "must be of type int"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "must not be negative"),
        ({"method": "ngram", "num_speculative_tokens": 100}, "at most 64"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "is more than prompt_lookup_max"),
        ({"method": "ngram", "disable_by_batch_size": 1}, "would never guess"),
        ({"num_speculative_tokens": 3}, "names no method"),
        ({"method": "eagle3", "model": "x"}, "not read in this version"),
        ({"method": "deepseek_mtp"}, "the model's own layers"),
    ],
)
def test_what_cannot_be_is_refused(given: Any, says: str, options: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        read(given, options)


def test_pipelines_are_refused_by_name(options: Any) -> None:
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 2"):
        read({"method": "ngram"}, options, pipeline_parallel_size=2)


def test_flags_of_old_say_what_they_are_called_now() -> None:
    with pytest.raises(ConfigError, match="is now --speculative-config"):
        load_from_kwargs({"model": "demo", "num_speculative_tokens": "5"})
