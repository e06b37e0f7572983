"""The Ray Serve example: OpenAI's client gets answers while replicas come and go."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import openai
import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.serve", reason="ray[serve] is not installed", exc_type=ImportError)
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import ray
from ray import serve
from ray_serve import application

from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow
TEXT: Final = "a prompt that the scripted model repeats token by token"
DEPLOYMENT: Final = {
    "autoscaling_config": {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 4,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "look_back_period_s": 11,  # more than metrics_interval_s
    },
    "ray_actor_options": {"num_cpus": 1},
}
ENGINE: Final = {
    "model": "scripted:",
    "scripted_tokens_per_second": 20,
    "num_threads": 1,
    "plugins": ["no:structured_outputs"],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a server on a cluster of its own."""
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=100 << 20,
        include_dashboard=False,
        logging_level=logging.WARNING,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(application({**ENGINE, "deployment": DEPLOYMENT}))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serve.shutdown()
        ray.shutdown()


def num_replicas() -> int:
    """Return the number of replicas that serve requests."""
    (deployment,) = serve.status().applications["default"].deployments.values()
    return sum(n for state, n in deployment.replica_states.items() if state == "RUNNING")


def wait_for_replicas(count: int) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while num_replicas() != count:
        assert time.monotonic() < until_s, f"{num_replicas()} replicas, not {count}"
        time.sleep(0.2)


class Load:
    """Clients that stream one answer after the other."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client
        self._ended = threading.Event()
        self.wrong: list[str] = []
        """Errors and incomplete texts."""
        self.answers = 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                found = stream(self._client)
            except openai.OpenAIError as error:
                found = repr(error)
            if found != TEXT:
                self.wrong.append(found)
            self.answers += 1

    @contextmanager
    def clients(self, count: int) -> Iterator[None]:
        """Run `count` clients; at the end each completes its answer."""
        self._ended.clear()
        threads = [threading.Thread(target=self.run) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()


def stream(client: openai.OpenAI) -> str:
    chunks = client.completions.create(
        model="scripted:", prompt=TEXT, max_tokens=100, temperature=0, stream=True
    )
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def test_replicas_follow_the_load_and_no_request_is_lost(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        assert [model.id for model in client.models.list()] == ["scripted:"]
        assert stream(client) == TEXT
        assert num_replicas() == 1
        load = Load(client)
        with load.clients(16):
            wait_for_replicas(2)
        with load.clients(2):
            wait_for_replicas(1)
        assert load.wrong == []
        assert load.answers > 18
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            client.completions.create(model="scripted:", prompt="x", max_tokens=-1)
