"""Heavy traffic over many adapters, a killed engine, and the accuracy of the demo's adapters."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from core import LLM, AsyncLLM, LoRARequest, SamplingParams
from core.api import EngineError, InvalidRequest
from core.testing.checkpoints import make_checkpoint
from examples.demo_model.adapters import voiced_items
from examples.demo_model.evaluate import options
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter
from tests.builtin_plugins.features.lora.api import Api

NUM_ADAPTERS = 200
NUM_REQUESTS = 2000
SETTINGS: dict[str, Any] = {
    "enable_lora": True,
    "max_loras": 8,
    "max_cpu_loras": 40,
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 16,
    "num_gpu_blocks_override": 600,
    "num_threads": 1,
    "log_level": "error",
}
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


def prompt_of(number: int) -> list[int]:
    return [4 + (number * 7 + i * i) % 280 for i in range(6 + number % 5)]


@pytest.mark.slow
def test_random_traffic_over_200_adapters(tmp_path: Path) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=3)
    adapters = [
        LoRARequest(
            f"a{n}", n + 1, str(make_adapter(model, tmp_path / f"a{n}", 1 + n % 16, seed=n))
        )
        for n in range(NUM_ADAPTERS)
    ]
    broken = make_adapter(model, tmp_path / "broken", 4)
    (broken / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    adapters.append(LoRARequest("broken", NUM_ADAPTERS + 1, str(broken)))
    draw = random.Random(5)
    jobs = [(n % 40, draw.choice([None, *adapters])) for n in range(NUM_REQUESTS)]
    expected: dict[tuple[int, str], tuple[int, ...]] = {}
    with LLM(str(model), **SETTINGS | {"max_loras": 1, "max_cpu_loras": 2}) as alone:
        for number, adapter in sorted(
            {(n, a) for n, a in jobs if a is not adapters[-1]}, key=lambda j: str(j[1])
        ):
            (output,) = alone.generate(
                [prompt_of(number)], PARAMS, use_tqdm=False, lora_request=adapter
            )
            expected[number, str(adapter)] = tuple(output.outputs[0].token_ids)
    roots = {"lora_roots": [str(tmp_path)], "enable_runtime_lora": True}
    engine = AsyncLLM(str(model), disable_frontend_multiprocessing=True, **SETTINGS, **roots)
    api = Api(engine)
    looks: list[tuple[int, int, int]] = []

    async def one(index: int, gate: asyncio.Semaphore) -> str:
        number, adapter = jobs[index]
        leaves = index % 9 == 0
        tokens = ()
        async with gate:
            try:
                async for output in engine.generate(
                    {"prompt_token_ids": prompt_of(number)},
                    PARAMS,
                    str(index),
                    lora_request=adapter,
                ):
                    tokens = tuple(output.outputs[0].token_ids)
                    if leaves:
                        return "left"
                    assert output.error is None, output.error
            except InvalidRequest as error:
                return (
                    "refused"
                    if adapter is adapters[-1] and "not a safetensors file" in str(error)
                    else str(error)
                )
        assert tokens == expected[number, str(adapter)], (index, adapter)
        return "right"

    async def come_and_go(ended: asyncio.Event) -> dict[int, int]:
        """Load and unload adapters, broken ones included; return the count of each status code."""
        answers: dict[int, int] = {}
        numbers = count()
        while not ended.is_set():
            number = next(numbers)
            path = (
                broken if number % 5 == 4 else Path(adapters[number * 7 % NUM_ADAPTERS].lora_path)
            )
            name = {"lora_name": f"other-{number}"}
            for verb, body in (("load", {**name, "lora_path": str(path)}), ("unload", name)):
                reply = await api.request(f"/v1/{verb}_lora_adapter", **body)
                answers[reply.status_code] = answers.get(reply.status_code, 0) + 1
            owners = [json.loads(answer) for answer in (await engine.call("memory.owners"))[0].all]
            looks.extend(
                (each["resident"], *each["owners"]["lora_adapters"])
                for each in owners
                if "lora_adapters" in each["owners"]
            )
        return answers

    async def all_of_them() -> tuple[list[str], list[dict[str, Any]], dict[int, int]]:
        gate = asyncio.Semaphore(48)
        ended = asyncio.Event()
        others = asyncio.ensure_future(come_and_go(ended))
        found = await asyncio.gather(*(one(index, gate) for index in range(NUM_REQUESTS)))
        ended.set()
        answers = await others
        answer = (await engine.call("lora.list"))[0].scheduler
        return found, json.loads(answer), answers

    try:
        (done,) = api.together(all_of_them())
        found, held, answers = done
    finally:
        api.close()
    assert found.count("right") > 1700
    assert set(found) == {"right", "left", "refused"}
    assert set(answers) <= {200, 400, 404, 503}
    assert answers[200] > 0 < answers[400], "what is broken is refused when it is loaded"
    assert answers[404] == answers[400] + answers.get(503, 0), (
        "an adapter that failed to load cannot be unloaded"
    )
    assert len(held) <= 40
    assert len([each for each in held if each["slot"] >= 0]) <= 8
    assert all(each["running"] == each["waiting"] == 0 for each in held if each["state"] == "ready")
    assert all(used <= limit for _, used, limit in looks)
    half = len(looks) // 2
    grown = max(resident for resident, *_ in looks[half:]) - max(
        resident for resident, *_ in looks[:half]
    )
    assert grown < 32 << 20, (
        "the second half of the traffic takes no memory that the first has not taken"
    )


@pytest.mark.slow
def test_restarted_engine_reloads_adapters(tmp_path: Path) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=3)
    adapters = [
        LoRARequest(f"a{n}", n + 1, str(make_adapter(model, tmp_path / f"a{n}", 8, seed=n)))
        for n in range(3)
    ]
    settings = SETTINGS | {"max_loras": 3, "max_cpu_loras": 3, "max_model_len": 400}
    long = PARAMS.clone(max_tokens=300)
    with LLM(str(model), **settings) as llm:
        prompts = [prompt_of(n) for n in range(3)]
        outputs = llm.generate(prompts, long, use_tqdm=False, lora_request=adapters)
        expected = [tuple(output.outputs[0].token_ids) for output in outputs]
    engine = AsyncLLM(str(model), **settings)

    async def run() -> list[tuple[int, ...]]:
        begun = asyncio.Event()

        async def one(number: int) -> tuple[int, ...]:
            tokens: tuple[int, ...] = ()
            prompt = {"prompt_token_ids": prompt_of(number)}
            async for output in engine.generate(
                prompt, long, str(number), lora_request=adapters[number]
            ):
                assert output.error is None, output.error
                tokens = tuple(output.outputs[0].token_ids)
                begun.set()
            return tokens

        async def kill() -> None:
            await begun.wait()
            pid = json.loads((await engine.call("memory.owners"))[0].all[0])["pid"]
            assert pid != os.getpid()
            os.kill(pid, signal.SIGKILL)

        *found, _ = await asyncio.gather(*(one(number) for number in range(3)), kill())
        return found

    try:
        assert asyncio.run(run()) == expected
        assert engine.health()["restarts"] == 1
    finally:
        engine.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(("voice", "least"), [("capitals", 0.85), ("pirate", 0.95)])
def test_demo_adapters_reach_documented_accuracy(voice: str, least: float) -> None:
    items = voiced_items(voice, "evaluation", 200, evaluation=True)
    modules = [f"{name}=demo:{name}" for name in ("capitals", "pirate")]
    api = Api(
        AsyncLLM(
            "demo:", lora_modules=modules, log_level="error", disable_frontend_multiprocessing=True
        )
    )
    try:
        bodies = [
            {
                "messages": item.messages,
                "chat_template_kwargs": options(item)["chat_template_kwargs"] or {},
            }
            for item in items
        ]
        path = "/v1/chat/completions"
        more = {"model": voice, "temperature": 0, "max_tokens": 320}
        replies = api.together(*(api.request(path, **body, **more) for body in bodies))
    finally:
        api.close()
    texts = [
        reply.json()["choices"][0]["message"]["content"].rpartition("</think>")[2].strip()
        for reply in replies
    ]
    right = sum(text == item.answer.strip() for text, item in zip(texts, items, strict=True))
    assert right >= least * len(items), right


def test_lora_request_without_enable_lora_is_rejected() -> None:
    with LLM("demo:", max_model_len=64, log_level="error") as llm:
        with pytest.raises(EngineError, match="start the engine with enable_lora=True"):
            llm.generate(
                ["a"], PARAMS, use_tqdm=False, lora_request=LoRARequest("a", 1, "demo:pirate")
            )
        with pytest.raises(AttributeError, match="no active feature adds it"):
            llm.add_lora(LoRARequest("a", 1, "demo:pirate"))
