"""Entry points with vLLM's names: settings, stepping by hand, metrics, the model, calls."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses

import pytest

import core
from builtin_plugins.metric_sinks.prometheus.snapshots import Counter, Gauge, Histogram
from core import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    LLMEngine,
    ModelRegistry,
    SamplingParams,
)
from core.errors import ConfigError, InvalidRequest

SMALL = {"max_model_len": 64, "num_gpu_blocks_override": 32}


def test_every_public_name_exists():
    assert [name for name in core.__all__ if getattr(core, name, None) is None] == []


def test_engine_args_become_keywords():
    args = EngineArgs("scripted:", **SMALL, enable_lora=False)
    with LLM(**dataclasses.asdict(args)) as llm:
        assert llm.config.model.max_model_len == 64
        assert llm.generate("works", SamplingParams(max_tokens=20))[0].outputs[0].text == "works"


def test_engine_args_reject_unknown_names_and_copy_defaults():
    with pytest.raises(TypeError, match="max_modellen"):
        EngineArgs("scripted:", max_modellen=3)
    one = EngineArgs("a")
    two = EngineArgs("b")
    assert one.served_model_name is None or one.served_model_name is not two.served_model_name


def test_engine_args_from_cli_args():
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--own", default="o")
    given = parser.parse_args(
        [
            "--model",
            "scripted:",
            "--max_model_len",
            "1k",
            "--no-enable-prefix-caching",
            "--own",
            "mine",
        ]
    )
    args = AsyncEngineArgs.from_cli_args(given)
    assert (args.model, args.max_model_len, args.enable_prefix_caching, given.own) == (
        "scripted:",
        1000,
        False,
        "mine",
    )
    with pytest.raises(ConfigError, match="--max-model-len 'many'"):
        EngineArgs.from_cli_args(parser.parse_args(["--max-model-len", "many"]))


def test_llm_engine_steps_by_hand():
    engine = LLMEngine.from_engine_args(EngineArgs("scripted:", **SMALL), usage_context=None)
    engine.add_request("a", "one two", SamplingParams(max_tokens=30), lora_request=None)
    engine.add_request("b", "three", SamplingParams(max_tokens=30))
    assert engine.get_num_unfinished_requests() == 2
    engine.abort_request(["b"])
    done = {}
    while engine.has_unfinished_requests():
        done |= {
            output.request_id: output.outputs[0].text for output in engine.step() if output.finished
        }
    assert done == {"a": "one two"}
    with pytest.raises(TypeError, match="stat_loggers"):
        LLMEngine.from_engine_args(EngineArgs("scripted:"), stat_loggers=[print])
    engine.shutdown()


def test_async_llm_engine_from_engine_args():
    args = AsyncEngineArgs("scripted:", **SMALL, disable_frontend_multiprocessing=True)
    engine = AsyncLLMEngine.from_engine_args(args)

    async def main():
        assert await engine.get_tokenizer() is engine.tokenizer
        return (
            [o async for o in engine.generate("works", SamplingParams(max_tokens=20), "r")][-1]
            .outputs[0]
            .text
        )

    assert asyncio.run(main()) == "works"
    assert engine.is_running
    assert not engine.errored
    engine.shutdown()
    assert engine.errored


def test_get_metrics_returns_objects():
    with LLM("scripted:", **SMALL, disable_log_stats=False) as llm:
        llm.generate(["one", "three"], SamplingParams(max_tokens=20))
        found = {metric.name: metric for metric in llm.get_metrics()}
    generated = found["engine_generation_tokens"]
    running = found["engine_num_requests_running"]
    assert isinstance(generated, Counter)
    assert generated.value == 10
    assert isinstance(running, Gauge)
    assert running.value == 0
    sizes = found["engine_request_prompt_tokens"]
    assert isinstance(sizes, Histogram)
    assert (sizes.count, sizes.sum, sizes.buckets["+Inf"]) == (2, 8, 2)
    assert sizes.labels == {"engine": "0", "model_name": "scripted:"}


def test_get_metrics_needs_log_stats():
    with (
        LLM("scripted:", **SMALL) as llm,
        pytest.raises(InvalidRequest, match="disable_log_stats=False"),
    ):
        llm.get_metrics()


def test_apply_model_takes_functions_and_collective_rpc_does_not():
    with LLM("scripted:", **SMALL) as llm:
        assert llm.apply_model(lambda model: model.vocab_size) == [
            llm.core.executor.worker.model.vocab_size
        ]
        with pytest.raises(InvalidRequest, match="not a function"):
            llm.collective_rpc(lambda worker: 1)
        with pytest.raises(InvalidRequest, match=r"'unknown\.verb'"):
            llm.collective_rpc("unknown.verb", args=(b"1",))
        with pytest.raises(InvalidRequest, match="one bytes object"):
            llm.collective_rpc("unknown.verb", kwargs={"a": 1})


def test_model_registry_lists_architectures():
    assert "Qwen3ForCausalLM" in ModelRegistry.get_supported_archs()
    with pytest.raises(ConfigError, match="engine_models"):
        ModelRegistry.register_model("MineForCausalLM", "mine:Mine")
