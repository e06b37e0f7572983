"""`--speculative-config`: accepted and rejected values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.features.speculation.settings import (
    BUILTIN,
    HEADS,
    IGNORED_KEYS,
    KEYS_OF_METHODS,
    settings_of,
)
from builtin_plugins.speculators.api import SpeculativeConfig
from core.api import ConfigError
from core.config.build import config_from_kwargs
from core.frontend.startup import load_from_kwargs
from core.plugin import load_plan, make_plan


@pytest.fixture(scope="module")
def options() -> Any:
    return list(load_plan(make_plan()).options())


def read(given: Any, options: Any, **more: Any) -> SpeculativeConfig | None:
    return settings_of(
        config_from_kwargs({"model": "demo", "speculative_config": given, **more}, options)
    )


def test_method_defaults_and_aliases(options: Any) -> None:
    assert read(None, options) is None
    found = read({"method": "ngram"}, options)
    assert found is not None
    assert (found.max_draft_tokens, found.lookup) == (5, (2, 5))
    found = read({"model": "[ngram]", "prompt_lookup_max": 4}, options)
    assert found is not None
    assert found.lookup == (2, 4)
    assert SpeculativeConfig("ngram", prompt_lookup_min=7).lookup == (7, 7)
    assert SpeculativeConfig("ngram", prompt_lookup_max=1).lookup == (1, 1)
    assert read({"method": "suffix"}, options).max_draft_tokens == 24  # type: ignore[union-attr]


def test_flags_of_single_keys_set_the_configuration(options: Any) -> None:
    found = read(None, options, spec_method="ngram", spec_tokens=3)
    assert found == read({"method": "ngram", "num_speculative_tokens": 3}, options)
    found = read(None, options, spec_method="suffix", spec_model="/outputs")
    assert found is not None
    assert found.model == "/outputs"
    found = read({"prompt_lookup_max": 4}, options, spec_method="ngram")
    assert found is not None
    assert found.lookup == (2, 4)
    with pytest.raises(
        ConfigError, match=r"^--spec-method: got 'suffix' next to --speculative-config\.method;"
    ):
        read({"method": "ngram"}, options, spec_method="suffix")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, "expected type int"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "must not be negative"),
        (
            {"method": "ngram", "num_speculative_tokens": 0},
            "num_speculative_tokens: got 0; expected 1 or more",
        ),
        ({"method": "ngram", "num_speculative_tokens": 100}, "at most 64"),
        ({"method": "ngram", "num_speculative_tokens": 10**9}, "at most 64"),
        ({"method": "ngram", "num_speculative_tokens": 1e9}, "expected type int"),
        ({"method": "ngram", "num_speculative_tokens": True}, "expected type int"),
        ({"metod": "ngram"}, "did you mean 'method'"),
        (
            {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3},
            "is more than prompt_lookup_max",
        ),
        ({"method": "ngram", "disable_by_batch_size": 1}, "which disables speculation"),
        ({"num_speculative_tokens": 3}, "needs a method"),
        (
            {"method": "eagle", "speculative_token_tree": 3},
            "speculative_token_tree: got 3; expected a list of tuples",
        ),
        ({"method": "eagle", "speculative_token_tree": "[(0,), 1"}, "expected a list of tuples"),
        ({"method": "eagle", "speculative_token_tree": "[]"}, "expected a list of tuples"),
        ({"method": "eagle", "speculative_token_tree": "[('a',)]"}, "expected a list of tuples"),
        ({"method": "eagle", "speculative_token_tree": "[(0,), ()]"}, r"has a node \(\)"),
        ({"method": "eagle", "speculative_token_tree": "[(0,), (-1,)]"}, r"has a node \(-1,\)"),
        ({"method": "eagle", "speculative_token_tree": "[(0,), (0,)]"}, "names a node twice"),
        ({"method": "eagle", "speculative_token_tree": "[(1,)]"}, r"has \(1,\) but not \(0,\)"),
        (
            {"method": "eagle", "speculative_token_tree": "[(0,), (1, 0)]"},
            r"has \(1, 0\) but not \(1,\)",
        ),
        (
            {"method": "eagle", "speculative_token_tree": str([(i,) for i in range(65)])},
            "got 65 nodes; expected up to 64",
        ),
        (
            {
                "method": "eagle",
                "speculative_token_tree": "[(0,), (1,)]",
                "num_speculative_tokens": 3,
            },
            "has 2 nodes, but --speculative-config.num_speculative_tokens is 3",
        ),
    ],
)
def test_invalid_speculative_config_is_rejected(given: Any, says: str, options: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        read(given, options)


def test_chain_tree_and_ignored_vllm_keys(options: Any) -> None:
    given = {
        "method": "deepseek_mtp",
        "speculative_token_tree": "[(0,), (0, 0)]",
        "enforce_eager": False,
    }
    found = read(given, options)
    assert found is not None
    assert (found.method, found.max_draft_tokens, found.tree) == ("mtp", 2, None)


@pytest.mark.parametrize("method", BUILTIN)
def test_key_of_another_method_is_refused_by_name(method: str, options: Any) -> None:
    values = {"model": "/draft", "revision": "main", "draft_tensor_parallel_size": 1}
    for key, methods in KEYS_OF_METHODS.items():
        given = {"method": method, key: values.get(key, 1)}
        if key == "suffix_decoding_max_spec_factor":
            given[key] = 0.5
        if key == "suffix_decoding_min_token_prob":
            given[key] = 0.5
        if method in methods:
            assert read(given, options) is not None
            continue
        with pytest.raises(ConfigError, match=rf"^--speculative-config\.{key}: got .* not read it"):
            read(given, options)


@pytest.mark.parametrize("method", ["draft_model", *HEADS])
def test_draft_ranks_are_those_of_the_model(method: str, options: Any) -> None:
    given = {"method": method, "draft_tensor_parallel_size": 7}
    with pytest.raises(ConfigError, match=r"draft_tensor_parallel_size: got 7; expected --tensor"):
        read(given, options)


@pytest.mark.parametrize("key", IGNORED_KEYS)
def test_key_without_an_effect_is_refused(key: str, options: Any) -> None:
    assert read({"method": "ngram", key: False}, options) is not None
    with pytest.raises(ConfigError, match=rf"^--speculative-config\.{key}: got True; expected"):
        read({"method": "ngram", key: True}, options)


@pytest.mark.parametrize("given", ["[(1,), (0,), (0, 0)]", [[0], [1], [0, 0]]])
def test_tree_nodes_in_any_order(given: Any, options: Any) -> None:
    for more in ({}, {"num_speculative_tokens": 3}):
        found = read({"method": "eagle", "speculative_token_tree": given, **more}, options)
        assert found is not None
        assert found.tree is not None
        assert (found.max_draft_tokens, found.tree.nodes) == (3, ((0,), (0, 0), (1,)))


@pytest.mark.parametrize(
    ("head_config", "method", "num_tokens"),
    [
        ({"model_type": "llama"}, "draft_model", 5),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}, "eagle3", 3),
        ({"model_type": "eagle", "architectures": ["EagleLlamaModel"]}, "eagle", 3),
        ({"architectures": ["EagleDeepSeekMTPModel"]}, "eagle", 3),
        ({"architectures": ["EagleLlama4ForCausalLM"]}, "eagle", 3),
        ({"architectures": ["EagleMiniCPMForCausalLM"]}, "eagle", 3),
        ({"medusa_num_heads": 4}, "medusa", 5),
        ({"model_type": "suffix"}, "suffix", 24),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "mlp_speculator", 5),
        (
            {
                "speculators_config": {
                    "algorithm": "eagle3",
                    "proposal_methods": [{"speculative_tokens": 4}],
                }
            },
            "eagle3",
            4,
        ),
    ],
)
def test_checkpoint_determines_method(
    head_config: dict[str, Any], method: str, num_tokens: int, options: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(head_config))
    found = read({"model": str(tmp_path)}, options)
    assert found is not None
    assert (found.method, found.max_draft_tokens) == (method, num_tokens)


def test_pipeline_parallel_is_rejected(options: Any) -> None:
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 2"):
        read({"method": "ngram"}, options, pipeline_parallel_size=2)


def test_old_flags_name_their_replacement() -> None:
    with pytest.raises(ConfigError, match="is now --speculative-config"):
        load_from_kwargs({"model": "demo", "num_speculative_tokens": "5"})
