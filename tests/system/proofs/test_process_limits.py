"""Servers under small limits of files and memory, and with processes stopped for a while."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.served import COLD
from tests.system.proofs.test_api_death import (
    COMMAND,
    Service,
    body,
    is_gone,
    serving,
    streamed,
    wait_for,
)
from tests.timeouts import TIMEOUT_S


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


def state_of(pid: int) -> str:
    """Return the state of a process: `T` while it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pause(pid: int) -> None:
    """Stop a process, and let it go on once it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: state_of(pid) == "T")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: state_of(pid) != "T")


def test_streams_go_on_when_processes_are_stopped_and_continued(tmp_path: Path, llama: str) -> None:
    async def main(service: Service) -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=TIMEOUT_S) as client:
            expected = await asyncio.gather(*(streamed(client, i) for i in range(4)))
            assert None not in expected
            for find in (service.api, service.engine, lambda: service.process.pid):
                streams = [asyncio.ensure_future(streamed(client, i)) for i in range(4)]
                while not all(stream.done() for stream in streams):
                    await asyncio.to_thread(pause, find())
                    await asyncio.sleep(0.02)
                assert [await stream for stream in streams] == expected
            os.kill(service.process.pid, signal.SIGSTOP)  # the rest serves without its parent
            assert await streamed(client, 1) == expected[1]
            os.kill(service.process.pid, signal.SIGCONT)
            health = (await client.get("/health")).json()
            assert (health["restarts"], health["server_restarts"]) == (0, 0)

    with serving(tmp_path, llama, "--dtype", "float32") as service:
        asyncio.run(main(service))


@pytest.mark.slow
def test_api_process_that_dies_while_its_parent_is_stopped_is_restarted_later(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "scripted:") as service:
        api = service.api()
        engine = service.engine()
        os.kill(service.process.pid, signal.SIGSTOP)
        os.kill(api, signal.SIGKILL)
        wait_for(lambda: is_gone(api))
        os.kill(service.process.pid, signal.SIGCONT)
        wait_for(service.is_ready)
        assert service.api() != api
        assert service.engine() == engine


def limited(kind: int, limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (limit, limit))


@pytest.mark.slow
def test_server_with_64_descriptors_answers_some_and_refuses_the_others() -> None:
    flags = ["scripted:", "--served-model-name", "tiny", "--max-model-len", "512", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "serve", *flags, *COLD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limited(resource.RLIMIT_NOFILE, 64),
    )
    assert process.stdout is not None

    async def send(client: httpx.AsyncClient, i: int) -> str:
        form = {"structured_outputs": {"regex": f"[a-z]{{3,9}}{i}"}} if i % 5 == 0 else {}
        try:
            reply = await client.post("/v1/completions", json=body(i) | {"max_tokens": 20} | form)
        except httpx.TransportError:
            return "refused"
        if reply.status_code == 503:
            assert int(reply.headers["retry-after"]) > 0
        return str(reply.status_code)

    async def main(url: str) -> None:
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
            for _ in range(2):
                kinds = Counter(await asyncio.gather(*(send(client, i % 60) for i in range(150))))
                assert kinds.keys() <= {"200", "503", "refused"}
                assert kinds["200"] > 10
            assert (await client.get("/health")).json()["restarts"] == 0

    try:
        asyncio.run(main(process.stdout.readline().split()[-1]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit_mib", "cache", "message"),
    [
        (1500, "8G", "exceeds what the system gives this process .*--kv-cache-memory-bytes"),
        (250, "32M", "stage: loading the model"),
    ],
)
def test_start_beyond_a_memory_limit_is_refused_by_name(
    limit_mib: int, cache: str, message: str
) -> None:
    flags = ["demo:", "--dtype", "float32", "--port", "0", "--kv-cache-memory-bytes", cache]
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMAND, "serve", *flags, *COLD],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limited(resource.RLIMIT_DATA, limit_mib << 20),
    )
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert re.search(f"engine: error: .*{message}", done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr
