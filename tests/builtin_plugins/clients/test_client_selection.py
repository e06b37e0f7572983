"""Client selection: engine process by default, a thread by flag or without the plugin."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from builtin_plugins.clients.process.supervised import Supervised
from core import AsyncLLM, SamplingParams
from core.engine.thread_client import ThreadClient

SMALL = {"max_model_len": 64, "num_gpu_blocks_override": 32, "log_level": "error"}


@pytest.mark.parametrize(
    ("settings", "client"),
    [
        ({}, Supervised),
        ({"disable_frontend_multiprocessing": True}, ThreadClient),
        ({"plugins": ["no:client_process"]}, ThreadClient),
    ],
    ids=["process", "thread", "no plugin"],
)
def test_client_selection_follows_the_flags(settings: dict[str, Any], client: type) -> None:
    async def last(engine: AsyncLLM) -> str:
        return (
            [o async for o in engine.generate("works", SamplingParams(max_tokens=20), "r")][-1]
            .outputs[0]
            .text
        )

    engine = AsyncLLM("scripted:", **SMALL, **settings)
    try:
        assert type(engine._client) is client
        assert asyncio.run(last(engine)) == "works"
        assert asyncio.run(engine.reset_prefix_cache())
    finally:
        engine.shutdown()


WITHOUT_SOCKETS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "zmq":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from core import AsyncLLM
from core.errors import ConfigError
try:
    AsyncLLM("scripted:", max_model_len=64)
except ConfigError as error:
    print(error)
settings = {"max_model_len": 64, "num_gpu_blocks_override": 32}
AsyncLLM("scripted:", **settings, disable_frontend_multiprocessing=True).shutdown()
print("serves")
"""


def test_missing_pyzmq_is_reported_with_the_remedy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SOCKETS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    message, serves = done.stdout.splitlines()
    assert "needs zmq, which is not installed: `pip install pyzmq`" in message
    assert "--disable-frontend-multiprocessing" in message
    assert serves == "serves"
