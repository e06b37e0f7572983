"""An answer is never continued with other weights than it was begun with."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.clients.process.weights import UPDATED, KnownWeights, WeightsIdentity
from core import AsyncLLM
from core.api.models import ModelSource
from core.testing.checkpoints import make_checkpoint
from core.types import RequestOutput
from tests.builtin_plugins.clients.streams import params, prompt, until

UPDATES = '''
"""A plugin with a call that updates the weights of the running model."""
import torch

from core.api import hookimpl


class Updates:
    name = "updates"

    def loaded(self, parts):
        self.model = parts.model
        return []

    def call(self, verb, data):
        name = "model.embed_tokens.weight"
        shape = self.model.weights.shapes()[name]
        self.model.update_weights([(name, torch.ones(shape))])
        return b"done"


@hookimpl
def engine_runner_extensions():
    return [Updates()]
'''
COUNTS = '''
"""A plugin with a call that returns how often the weights were identified."""
from builtin_plugins.clients.process.weights import WeightsIdentity
from core.api import hookimpl

identify = WeightsIdentity.call
calls = []


def counted(half, verb, data):
    calls.append(verb)
    return identify(half, verb, data)


WeightsIdentity.call = counted


class Counts:
    name = "counts"

    def call(self, verb, data):
        return str(len(calls)).encode()


@hookimpl
def engine_runner_extensions():
    return [Counts()]
'''


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path / "llama")


def rewrite(folder: Path) -> None:
    """Write the same weights again, as a new file."""
    file = folder / "model.safetensors"
    shutil.copy(file, folder / "copy")
    (folder / "copy").rename(file)


async def kill(engine: AsyncLLM) -> None:
    before = engine._client.status().restarts
    os.kill(engine._client.child.pid, signal.SIGKILL)
    await until(lambda: engine._client.status().restarts > before)
    await until(lambda: engine.state() == "ready")


async def last_output(engine: AsyncLLM, number: int, max_tokens: int) -> RequestOutput:
    sampling = params(number, max_tokens=max_tokens, n=1)
    outputs = engine.generate(prompt(number), sampling, f"request-{number}")
    return [output async for output in outputs][-1]


async def begin(engine: AsyncLLM, number: int) -> asyncio.Task[RequestOutput]:
    """Return a stream that has tokens."""
    task = asyncio.create_task(last_output(engine, number, 400))
    requests = engine._client._requests._requests
    await until(lambda: any(entry.token_ids for entry in requests.values()))
    return task


@pytest.mark.parametrize("way", ["memory", pytest.param("files", marks=pytest.mark.slow)])
def test_stream_ends_at_a_restart_with_other_weights(llama: Path, tmp_path: Path, way: str) -> None:
    plugin = tmp_path / "updates.py"
    plugin.write_text(UPDATES)

    async def main() -> None:
        engine = AsyncLLM(
            str(llama),
            plugins=[str(plugin)],
            dtype="float32",
            max_model_len=512,
            max_num_seqs=1,
            kv_cache_memory_bytes=1 << 25,
            num_threads=1,
            structured_outputs_config={"warm_up": False},
        )
        try:
            if way == "memory":
                await asyncio.wrap_future(engine._client.call("updates.weights"))
            begun = await begin(engine, 1)
            waiting = asyncio.create_task(last_output(engine, 3, 4))
            await until(lambda: len(engine._client._requests) == 2)
            if way == "files":
                rewrite(llama)
            await kill(engine)
            assert "other weights" in ((await begun).error or "")
            assert (await waiting).outputs[0].finish_reason == "length"
            continued = await begin(engine, 5)
            await kill(engine)
            assert (await continued).outputs[0].finish_reason == "length"
        finally:
            engine.shutdown()

    asyncio.run(main())


def test_calls_that_only_read_identify_no_weights(llama: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "counts.py"
    plugin.write_text(COUNTS)
    engine = AsyncLLM(
        str(llama),
        plugins=[str(plugin)],
        dtype="float32",
        max_model_len=64,
        kv_cache_memory_bytes=1 << 25,
        num_threads=1,
        structured_outputs_config={"warm_up": False},
    )
    try:

        def counts() -> list[int]:
            answers = [engine._client.call("counts.now").result() for _ in range(3)]
            return [int(each[0].ranks[0]) for each in answers]

        first, *others = counts()
        assert others == [first + 1, first + 2]
        reading_calls(engine.registry).add("counts.now")
        assert counts() == [first + 3] * 3
    finally:
        engine.shutdown()


def worker_half(folder: Path) -> tuple[WeightsIdentity, SimpleNamespace]:
    """Return the extension of a model with weights in a folder, and the model."""
    model = SimpleNamespace(weights_version=1)
    half = WeightsIdentity()
    source = ModelSource(str(folder), "LlamaForCausalLM", None, path=str(folder))
    half.loaded(SimpleNamespace(source=source, model=model))  # type: ignore[arg-type]
    return half, model


def test_identity_is_that_of_the_files_until_an_update_and_after_a_reload(llama: Path) -> None:
    half, model = worker_half(llama)
    loaded = half.call("identity", b"")
    assert loaded == worker_half(llama)[0].call("identity", b"")
    model.weights_version += 1
    updated = half.call("identity", b"")
    assert updated == half.call("identity", b"")
    assert updated is not None
    assert updated.startswith(UPDATED.encode())
    model.weights_version = model.reloaded_version = 3
    assert half.call("identity", b"") == loaded
    rewrite(llama)
    assert half.call("identity", b"") == loaded, "files that are not loaded yet"
    assert worker_half(llama)[0].call("identity", b"") != loaded


def test_first_and_unknown_identities_replace_none() -> None:
    weights = KnownWeights()
    assert not weights.note("a")
    assert not weights.note("")
    assert not weights.note("a")
    assert weights.note("b")
