"""Choice among runners, which are plugins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError

Checkpoint = Callable[..., Path]
Open = Callable[..., LLM]

LOUD = '''
"""Generates, and records its requests."""

from dataclasses import replace

from core.api import Entry, hookimpl


@hookimpl
def engine_runners():
    return [Entry("loud", Loud, "generates in capitals")]


class Loud:
    generates = True

    def __init__(self, registry):
        self.inner = registry.load(registry.choose("runners", "generate"))(registry)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def adapt_spec(self, spec, config, source):
        if config.model.runner != "loud":
            return None
        model = replace(config.model, runner="generate")
        return self.inner.adapt_spec(spec, replace(config, model=model), source)

    def read_params(self, info, params):
        return self.inner.read_params(info, params.clone(max_tokens=params.max_tokens + 1))
'''


def test_unknown_runner_is_rejected(checkpoint: Checkpoint, engine: Open) -> None:
    with pytest.raises(
        ConfigError,
        match="unknown runner 'poling'; available: generate, pooling; did you mean 'pooling'",
    ):
        engine(checkpoint("BertModel"), runner="poling")


def test_pooling_model_is_rejected_without_pooling_plugin(
    checkpoint: Checkpoint, engine: Open
) -> None:
    without = {"plugins": ["no:runner_pooling"]}
    with pytest.raises(
        ConfigError, match="'BertModel' generates no tokens; loaded runners: generate"
    ):
        engine(checkpoint("BertModel"), **without)
    with engine(checkpoint("Qwen3ForCausalLM"), **without) as llm:
        assert llm.config.model.runner == "generate"


def test_plugin_runner_is_selected_by_flag(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]], tmp_path: Path
) -> None:
    plugin = tmp_path / "loud.py"
    plugin.write_text(LOUD)
    three = SamplingParams(max_tokens=3, ignore_eos=True)
    for runner, count in (("auto", 3), ("loud", 4)):
        with engine(checkpoint("Qwen3ForCausalLM"), runner=runner, plugins=[str(plugin)]) as llm:
            assert (
                len(llm.generate(prompts[0], three, use_tqdm=False)[0].outputs[0].token_ids)
                == count
            )
