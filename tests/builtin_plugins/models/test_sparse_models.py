"""DeepSeek sparse attention: contexts of three and more times `index_topk`, run in every way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from core.errors import ConfigError, ModelError
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import plain_context, read_config
from tests.builtin_plugins.models.test_engine_parity import (
    Expected,
    assert_equal,
    expect,
    open_engine,
    run,
)

V32 = "DeepseekV32ForCausalLM"
GLM = "GlmMoeDsaForCausalLM"
HUNYUAN = "HYV4ForCausalLM"
V4 = "DeepseekV4ForCausalLM"
AXK2 = "AXK2ForCausalLM"
DOTS = "Dots3NoteForCausalLM"
LARGE4 = "MistralLarge4ForCausalLM"
PREEMPTING = {V4: 126, LARGE4: 120}
"""Blocks that preempt architectures with several pools."""
TOP_K = 20
"""`index_topk` of the tiny checkpoints; V4's is a number of compressed keys."""
LENGTHS = (60, 91, 75, 19, 3)
THREADS = str(Path(__file__).parents[1] / "executors" / "thread_ranks.py")
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "one by one": {"max_num_seqs": 1},
    "a budget of 16 tokens": {"max_num_batched_tokens": 16},
    "blocks of 4": {"block_size": 4},
    "preemption": {
        "block_size": 4,
        "max_num_batched_tokens": 32,
        "num_gpu_blocks_override": 80,
        "enable_prefix_caching": False,
    },
    "depth 2": {"async_scheduling": True},
    "drafts": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 1,
            "adaptive": False,
        }
    },
    "drafts at depth 2": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 1,
            "adaptive": False,
        },
        "async_scheduling": True,
    },
    "2 ranks": {
        "plugins": [THREADS],
        "distributed_executor_backend": "threads",
        "tensor_parallel_size": 2,
    },
    "torch attention": {"attention_backend": "torch"},
    "reference attention": {"attention_backend": "reference"},
}
ALWAYS = ("batched", "a budget of 16 tokens", "preemption", "drafts at depth 2")
FAST: dict[str, tuple[str, ...]] = {
    V32: tuple(WAYS),
    GLM: ALWAYS,
    HUNYUAN: ("preemption",),
    V4: (*ALWAYS[1:], "2 ranks"),
    AXK2: (),
    DOTS: (),
    LARGE4: ("drafts at depth 2",),
}
"""Ways that run in every run, by architecture."""


@pytest.fixture(scope="module")
def expected(
    checkpoint: Callable[[str], Path], by_transformers: Callable[[Path], Any]
) -> Callable[[str], list[Expected]]:
    """Return a function from architecture to transformers' results, computed once."""
    known: dict[str, list[Expected]] = {}

    def look_up(architecture: str) -> list[Expected]:
        if architecture not in known:
            model = by_transformers(checkpoint(architecture))
            top_k = model.config.get_text_config().index_topk
            assert top_k == (5 if architecture == V4 else TOP_K)
            known[architecture] = [expect(model, length, repeats=True) for length in LENGTHS]
        return known[architecture]

    return look_up


@pytest.mark.parametrize(
    ("architecture", "way"),
    [
        pytest.param(
            architecture,
            way,
            marks=[] if way in FAST[architecture] else pytest.mark.slow,
        )
        for architecture in FAST
        for way in WAYS
    ],
)
def test_contexts_beyond_index_topk_equal_transformers(
    architecture: str,
    way: str,
    checkpoint: Callable[[str], Path],
    expected: Callable[[str], list[Expected]],
) -> None:
    cases = expected(architecture)
    settings = dict(WAYS[way])
    if way == "preemption" and architecture in PREEMPTING:
        settings["num_gpu_blocks_override"] = PREEMPTING[architecture]
    with open_engine(checkpoint(architecture), **settings) as llm:
        outputs = run(llm, cases)
        assert_equal(outputs, cases)
        if way == "preemption":
            assert llm.core.scheduler.num_preemptions > 0
        if way == "drafts":
            assert sum(each.counts.get("spec_decode_num_draft_tokens", 0) for each in outputs) > 0


@pytest.mark.parametrize("architecture", [V32, pytest.param(GLM, marks=pytest.mark.slow)])
def test_trees_of_a_draft_model_with_an_indexer_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], expected: Callable[[str], list[Expected]]
) -> None:
    cases = expected(architecture)
    folder = checkpoint(architecture)
    tree: dict[str, Any] = {
        "method": "draft_model",
        "speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]",
    }
    tree |= {"model": str(folder), "adaptive": False}
    with open_engine(folder, speculative_config=tree) as llm:
        outputs = run(llm, cases)
    assert_equal(outputs, cases)
    assert sum(output.counts.get("spec_decode_num_accepted_tokens", 0) for output in outputs) > 0


@pytest.mark.parametrize("architecture", [V32, V4, pytest.param(GLM, marks=pytest.mark.slow)])
def test_cached_prefixes_beyond_index_topk_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], expected: Callable[[str], list[Expected]]
) -> None:
    cases = expected(architecture)
    with open_engine(checkpoint(architecture)) as llm:
        run(llm, cases)
        warm = run(llm, cases)
        assert_equal(warm, cases)
        assert [output.num_cached_tokens for output in warm] == [
            (len(case.prompt) - 1) // 16 * 16 for case in cases
        ]


@pytest.mark.parametrize("kv_cache_dtype", ["int8", pytest.param("fp8", marks=pytest.mark.slow)])
def test_quantized_latents_do_not_depend_on_chunks(
    kv_cache_dtype: str,
    checkpoint: Callable[[str], Path],
    expected: Callable[[str], list[Expected]],
) -> None:
    cases = expected(V32)
    settings = {"kv_cache_dtype": kv_cache_dtype}
    with open_engine(checkpoint(V32), **settings) as llm:
        whole = run(llm, cases)
    with open_engine(checkpoint(V32), **settings, max_num_batched_tokens=16) as llm:
        chunked = run(llm, cases)
    tokens = [[output.outputs[0].token_ids for output in found] for found in (whole, chunked)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(("max_model_len", "indexers"), [(TOP_K, 0), (TOP_K + 1, 3)])
def test_contexts_of_index_topk_tokens_cache_no_index_keys(
    max_model_len: int,
    indexers: int,
    checkpoint: Callable[[str], Path],
    spec_of: Callable[[str, Any], Any],
) -> None:
    folder = checkpoint(V32)
    spec = replace(spec_of(V32, read_config(folder)), max_positions=max_model_len)
    decoder = Decoder(spec, plain_context())
    decoder.load_weights(load_file(folder / "model.safetensors").items())
    assert sum(layer.name.endswith(".indexer") for layer in decoder.kv_layers) == indexers


def test_shared_layers_use_the_selection_of_an_earlier_one(
    checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    decoder = load(GLM, checkpoint(GLM))
    names = [layer.name for layer in decoder.kv_layers if layer.name.endswith(".indexer")]
    assert names == ["model.layers.0.indexer", "model.layers.2.indexer"]


def test_indexer_schedules_of_configs(
    tmp_path: Path, checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    del tmp_path
    plain = vars(read_config(checkpoint(GLM)))

    def sources(**fields: Any) -> list[int | None]:
        config = SimpleNamespace(**{**plain, "indexer_types": None, **fields})
        return [layer.index_source_layer for layer in spec_of(GLM, config).layers]

    assert sources() == [None, None, None]
    assert sources(index_topk_freq=2, index_skip_topk_offset=1) == [None, 0, None]
    assert sources(index_topk_pattern="FSS") == [None, 0, 0]
    with pytest.raises(ModelError, match=r"indexer_types in config\.json: got"):
        sources(indexer_types=["shared", "full", "full"])
    with pytest.raises(ModelError, match="index_topk"):
        sources(index_topk=0)


def test_indexer_without_a_query_latent_is_refused(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    config = SimpleNamespace(**{**vars(read_config(checkpoint(V32))), "q_lora_rank": None})
    with pytest.raises(ModelError, match="q_lora_rank: got null"):
        spec_of(V32, config)


def test_stages_do_not_part_layers_that_share_a_selection(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    spec_of(V32, read_config(checkpoint(V32))).check_split(1, 2)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 2 would part layers"):
        spec_of(GLM, read_config(checkpoint(GLM))).check_split(1, 2)


def test_backends_without_reads_of_slots_are_refused_by_name(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    class Blind:
        """A backend that reads whole sequences only."""

    spec = spec_of(V32, read_config(checkpoint(V32)))
    context: Any = replace(plain_context(), attention=Blind())  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="attention backend Blind does not support"):
        Decoder(spec, context)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_indexers_equal_transformers(
    seed: int, tmp_path: Path, by_transformers: Callable[[Path], Any]
) -> None:
    architecture = (V32, GLM)[seed % 2]
    changes: dict[str, Any] = {
        "index_topk": (1, 7, 16, 33)[seed // 2],
        "index_n_heads": (9, 11, 16, 13)[seed // 2],
        "index_head_dim": (8, 24, 16, 40)[seed // 2],
        "num_hidden_layers": 3,
        "attention_bias": seed % 3 == 0,
    }
    folder = make_checkpoint(architecture, tmp_path, seed=seed, **changes)
    cases = [expect(by_transformers(folder), length, repeats=True) for length in (50, 99)]
    for settings in ({}, {"max_num_batched_tokens": 16, "block_size": 4}):
        with open_engine(folder, **settings) as llm:
            assert_equal(run(llm, cases), cases)
