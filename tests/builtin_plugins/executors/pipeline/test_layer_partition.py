"""`--pipeline-layer-partition`: each stage has its number of layers, or the start is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.executors.mp import executor as mp
from builtin_plugins.executors.pipeline.partition import layer_partition
from core import LLM, SamplingParams
from core.api import EngineConfig
from core.config.sections import ParallelConfig
from core.errors import ConfigError
from core.testing.checkpoints import make_checkpoint

THREADS = str(Path(__file__).parents[1] / "thread_ranks.py")
FLAG = "--pipeline-layer-partition"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with three layers."""
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama"))


def open_engine(folder: Path, pipeline: int, **settings: Any) -> LLM:
    defaults = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 20}
    sizes = {"pipeline_parallel_size": pipeline, "num_threads": 1, "log_level": "error"}
    return LLM(str(folder), **(defaults | sizes | settings))


def config(partition: str | None, stages: int) -> EngineConfig:
    parallel = ParallelConfig(pipeline_parallel_size=stages)
    return EngineConfig(parallel=parallel, options={"pipeline_layer_partition": partition})


@pytest.mark.parametrize(
    ("text", "expected"), [(None, ()), ("3,5", (3, 5)), (" 3, 5", (3, 5)), ("1,1", (1, 1))]
)
def test_partition_is_read(text: str | None, expected: tuple[int, ...]) -> None:
    assert layer_partition(config(text, 2)) == expected


@pytest.mark.parametrize("text", ["", "8", "3,5,1", "3,0", "3,-5", "3,x", "3,", "3;5", "3.0,5"])
def test_malformed_partition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        layer_partition(config(text, 2))
    expected = "expected a number of layers, 1 or more, for each of the 2 stages"
    assert str(raised.value).startswith(f"{FLAG}: got {text!r}; {expected}")


def test_partition_without_stages_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match="for each of the 1 stages"):
        open_engine(llama, 1, pipeline_layer_partition="1,2")


def test_partition_of_another_number_of_layers_is_refused_before_a_rank_starts(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(mp, "RankProcess", fail)
    with pytest.raises(ConfigError) as raised:
        open_engine(llama, 2, pipeline_layer_partition="2,2")
    assert str(raised.value).startswith(f"{FLAG}: got 2,2, 4 layers; expected the model's 3.")


@pytest.mark.parametrize("partition", ["1,2", "2,1"])
def test_stages_have_their_layers_and_the_same_tokens(partition: str, llama: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    threads = {"plugins": [THREADS], "distributed_executor_backend": "threads"}
    with open_engine(llama, 1) as llm:
        expected = llm.generate([[5, 7, 9]], greedy, use_tqdm=False)[0].outputs[0].token_ids
    with open_engine(llama, 2, pipeline_layer_partition=partition, **threads) as llm:
        executor: Any = llm.core.executor
        assert ",".join(str(len(info.layers)) for info in executor._infos) == partition
        found = llm.generate([[5, 7, 9]], greedy, use_tqdm=False)[0].outputs[0].token_ids
    assert found == expected
