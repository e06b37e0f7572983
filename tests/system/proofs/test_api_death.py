"""The process that serves HTTP is killed, alone and with others: the engine goes on, retries
succeed, nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.served import COLD
from tests.timeouts import TIMEOUT_S

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
BROKEN = (httpx.TransportError,)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


class Service:
    """A server, its address, and what is below its parent."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.url = ""

    def below(self) -> dict[int, str]:
        """Its living children by number, with their names."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, tail = stat.read_text().rpartition(")")
            except OSError:
                continue
            state, parent = tail.split()[:2]
            if int(parent) == self.process.pid and state != "Z":
                found[int(stat.parent.name)] = head.partition("(")[2]
        return found

    def api(self) -> int:
        """The process that serves HTTP."""
        return wait_for(
            lambda: next((pid for pid, name in self.below().items() if name == "engine-api"), 0)
        )

    def engine(self) -> int:
        """The engine's process."""
        return wait_for(
            lambda: next(
                (pid for pid, name in self.below().items() if not name.startswith("engine-")), 0
            )
        )

    def log(self) -> str:
        """Return its log."""
        return (self.folder / "log").read_text()

    def metric(self, name: str) -> float:
        """One number of `/metrics`."""
        text = httpx.get(f"{self.url}/metrics", timeout=TIMEOUT_S).text
        match = re.search(rf"^{name}{{[^}}]*}} ([0-9.e+-]+)$", text, re.MULTILINE)
        assert match is not None, f"{name} is not in\n{text}"
        return float(match[1])

    def is_ready(self) -> bool:
        """Say whether it serves."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=TIMEOUT_S).status_code == 200
        except BROKEN:
            return False


def wait_for(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("the condition was not met in time")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def serving(folder: Path, model: str, *flags: str, status: int | None = 0) -> Iterator[Service]:
    """Serve on a free port; when it has ended with `status`, no process and no file of it may be
    left.
    """
    (folder / "tmp").mkdir()
    command = [sys.executable, "-P", "-c", COMMAND, "serve", model, "--served-model-name", "tiny"]
    command += ["--max-model-len", "512", "--kv-cache-memory-bytes", "32M", *COLD, *flags]
    command += [] if {"--uds", "--port"} & set(flags) else ["--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    service = Service(process, folder)
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving tiny on "), line + service.log()
        service.url = line.split()[-1]
        yield service
        left = [process.pid, *service.below()]
        if process.poll() is None and status is not None:
            process.send_signal(signal.SIGTERM)
        assert status is None or process.wait(TIMEOUT_S) == status, service.log()
        wait_for(lambda: all(is_gone(pid) for pid in left if pid != process.pid))
        assert list((folder / "tmp").glob("engine-*")) == []
    finally:
        if sys.exc_info()[0] is not None:
            print(service.log())
        process.kill()
        process.wait()
        process.stdout.close()


def body(i: int) -> dict[str, Any]:
    prompt = [5 + (i * 7 + j) % 80 for j in range(20 + i)]
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 150,
        "ignore_eos": True,
        "temperature": 0,
    }


async def streamed(client: httpx.AsyncClient, i: int) -> str | None:
    """The text of one stream; None if it was cut."""
    text = ""
    try:
        async with client.stream(
            "POST", "/v1/completions", json=body(i) | {"stream": True}
        ) as answer:
            if answer.status_code != 200:
                assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
                return None
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return text
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
    except BROKEN:
        pass
    return None


async def retried(client: httpx.AsyncClient, i: int, waits: list[float]) -> str:
    """As a client that tries again until it has the whole answer; how long it took from the first
    failure to that.
    """
    failed_s = 0.0
    while True:
        text = await streamed(client, i)
        if text is not None:
            waits.append(time.monotonic() - failed_s if failed_s else 0.0)
            return text
        failed_s = failed_s or time.monotonic()
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_retries_match_after_the_api_process_is_killed(
    llama: str, tmp_path: Path, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(service: Service) -> None:
        limits = httpx.Limits(max_connections=40, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=service.url, timeout=TIMEOUT_S, limits=limits
        ) as client:
            expected = await asyncio.gather(*(streamed(client, i) for i in range(16)))
            assert None not in expected
            engine = service.engine()
            for number in range(kills):
                waits: list[float] = []
                plain = [asyncio.ensure_future(streamed(client, i)) for i in range(8)]
                again = [asyncio.ensure_future(retried(client, i, waits)) for i in range(8, 16)]
                running = 0.0
                while running < 1:
                    running = await asyncio.to_thread(service.metric, "engine_num_requests_running")
                os.kill(service.api(), signal.SIGKILL)
                assert await asyncio.gather(*again) == expected[8:]
                for text, whole in zip(await asyncio.gather(*plain), expected[:8], strict=True):
                    assert text in (None, whole)
                with capsys.disabled():
                    print(f" retried after {max(waits):.2f} s", end="", flush=True)
                assert service.engine() == engine
                assert service.metric("engine_server_restarts_total") == number + 1
                assert service.metric("engine_restarts_total") == 0
                while await asyncio.to_thread(service.metric, "engine_num_requests_running"):
                    pass

    with serving(tmp_path, llama, "--dtype", "float32") as service:
        asyncio.run(main(service))
        assert service.log().count("the API process is back") == kills


def test_openai_client_retries_and_hits_the_prefix_cache(
    tmp_path: Path,
) -> None:
    prompt = "a prompt that is longer than one block of the cache " * 3
    with serving(tmp_path, "scripted:", "--enable-prompt-tokens-details") as service:
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=100) as client:
            first = client.completions.create(model="tiny", prompt=prompt, max_tokens=20)
            os.kill(service.api(), signal.SIGKILL)
            second = client.completions.create(model="tiny", prompt=prompt, max_tokens=20)
        assert second.choices[0].text == first.choices[0].text
        assert second.usage.prompt_tokens_details.cached_tokens > 100


def test_restart_answers_503_and_stays_alive(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted:") as service:
        for _ in range(20):
            os.kill(service.api(), signal.SIGKILL)
            refused = httpx.post(f"{service.url}/v1/completions", json=body(0), timeout=TIMEOUT_S)
            alive = httpx.get(f"{service.url}/livez", timeout=TIMEOUT_S)
            assert alive.status_code == 200
            wait_for(service.is_ready)
            if refused.status_code == 503:
                break
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "restarting")
        assert int(refused.headers["retry-after"]) > 0
        assert alive.json() == {"status": "alive"}


def test_killing_engine_and_api_process_recovers(llama: str, tmp_path: Path) -> None:
    with serving(tmp_path, llama, "--dtype", "float32") as service:
        expected = httpx.post(
            f"{service.url}/v1/completions", json=body(3), timeout=TIMEOUT_S
        ).json()["choices"]
        engine = service.engine()
        api = service.api()
        os.kill(engine, signal.SIGKILL)
        os.kill(api, signal.SIGKILL)
        wait_for(service.is_ready)
        assert service.engine() != engine
        got = httpx.post(f"{service.url}/v1/completions", json=body(3), timeout=TIMEOUT_S).json()[
            "choices"
        ]
        assert got == expected
        assert (
            service.metric("engine_restarts_total"),
            service.metric("engine_server_restarts_total"),
        ) == (1, 1)
        os.kill(service.engine(), signal.SIGKILL)  # and its recovery is what it was
        wait_for(lambda: service.metric("engine_restarts_total") == 2 and service.is_ready())


@pytest.mark.slow
def test_frozen_engine_is_replaced_at_api_restart(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted:", "--heartbeat-timeout", "4") as service:
        engine = service.engine()
        os.kill(engine, signal.SIGSTOP)
        os.kill(service.api(), signal.SIGKILL)
        wait_for(service.is_ready)
        assert service.engine() != engine
        assert is_gone(engine)
        assert "cannot take over the running engine" in service.log()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_signal_during_api_restart_stops_everything(tmp_path: Path, number: int) -> None:
    with serving(tmp_path, "scripted:") as service:
        os.kill(service.api(), signal.SIGKILL)
        wait_for(lambda: "died and is restarted" in service.log())
        service.process.send_signal(number)
        assert service.process.wait(TIMEOUT_S) == 0


SIGNAL_AFTER_FORK = """
import os, signal
from builtin_plugins.commands.serve.parent import Parent
from core.config import EngineConfig

fork = os.fork

def fork_and_signal():
    pid = fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGTERM)
    return pid

os.fork = fork_and_signal
made = Parent(EngineConfig(), 0).run()
print("parent" if isinstance(made, int) else "child", "goes on", flush=True)
"""


def test_signal_right_after_fork_stops_the_child() -> None:
    """Until the child sets its own handlers, it has the parent's."""
    completed = subprocess.run(
        [sys.executable, "-c", SIGNAL_AFTER_FORK],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert completed.stdout == "parent goes on\n", completed.stderr
    assert "killed by SIGTERM" in completed.stderr


def test_killed_parent_stops_everything(tmp_path: Path) -> None:
    socket_path = tmp_path / "socket"
    with serving(tmp_path, "scripted:", "--uds", str(socket_path), status=None) as service:
        assert socket_path.exists()
        service.process.kill()
        service.process.wait()
        wait_for(lambda: not socket_path.exists())


@pytest.mark.slow
def test_killed_parent_during_restart_stops_the_engine(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted:", status=None) as service:
        engine = service.engine()
        os.kill(service.api(), signal.SIGKILL)
        wait_for(lambda: "died and is restarted" in service.log())
        left = [engine, *service.below()]
        service.process.kill()
        service.process.wait()
        wait_for(lambda: all(map(is_gone, left)))


def test_api_process_over_memory_limit_is_restarted_alone(tmp_path: Path) -> None:
    plugin = tmp_path / "greedy.py"
    plugin.write_text(GREEDY)
    with serving(
        tmp_path, "scripted:", "--plugins", str(plugin), "--api-memory-limit", "600M"
    ) as service:
        engine = service.engine()
        with pytest.raises(BROKEN):
            httpx.get(f"{service.url}/greedy", timeout=TIMEOUT_S)
        wait_for(service.is_ready)
        assert service.engine() == engine
        assert service.metric("engine_server_restarts_total") == 1
        assert "more than 600 MiB (--api-memory-limit)" in service.log()


GREEDY = '''
"""A route that takes ever more memory."""
import asyncio

from starlette.routing import Route

from core.api import Entry, hookimpl


class Greedy:
    def __init__(self, engine, config):
        self.taken = []

    def routes(self):
        return [Route("/greedy", self.take)]

    async def take(self, request):
        for _ in range(50):
            self.taken.append(b"x" * 20_000_000)
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()


@hookimpl
def engine_routes():
    return [Entry("greedy", Greedy, "takes memory")]
'''


def test_crash_looping_api_process_stops_the_server(tmp_path: Path) -> None:
    plugin = tmp_path / "dies.py"
    now = tmp_path / "now"
    plugin.write_text(DIES.format(path=str(now)))
    with serving(
        tmp_path, "scripted:", "--plugins", str(plugin), "--max-restarts", "2", status=1
    ) as service:
        now.touch()
        os.kill(service.api(), signal.SIGKILL)
        assert service.process.wait(TIMEOUT_S) == 1
        assert "it died 3 times in a row (--max-restarts 2)" in service.log()


DIES = '''
"""Kills the process that serves in its start."""
import os
import signal

from core.api import hookimpl


@hookimpl
def engine_process_start(process):
    if process == "main" and os.path.exists({path!r}):
        os.kill(os.getpid(), signal.SIGKILL)
'''


def test_api_process_dying_at_start_is_not_restarted(tmp_path: Path) -> None:
    plugin = tmp_path / "dies.py"
    plugin.write_text(DIES.format(path=str(tmp_path)))
    command = [
        sys.executable,
        "-P",
        "-c",
        COMMAND,
        "serve",
        "scripted:",
        "--port",
        "0",
        "--plugins",
        str(plugin),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert re.search(
        r"engine: error: the API process \(pid \d+\) died during its start: it was killed by "
        r"SIGKILL",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_signal_during_start_stops_cleanly(tmp_path: Path, number: int, status: int) -> None:
    command = [sys.executable, "-P", "-c", COMMAND, "serve", "scripted:", "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    service = Service(process, tmp_path)
    try:
        left = wait_for(
            lambda: len(below := service.below()) == 2 and below
        )  # the engine has just been started
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == status
        wait_for(lambda: all(map(is_gone, left)))
        assert list(tmp_path.glob("engine-*")) == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "streams",
    [
        "> /dev/full 2>&- <&-",
        pytest.param("> /dev/full", marks=pytest.mark.slow),
        pytest.param(">&- 2>&- <&-", marks=pytest.mark.slow),
        pytest.param(">&-", marks=pytest.mark.slow),
        pytest.param("2> /dev/full", marks=pytest.mark.slow),
    ],
)
def test_full_or_closed_standard_streams_are_tolerated(tmp_path: Path, streams: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = f"-P -c '{COMMAND}' serve scripted: --max-model-len 64 --port {port}"
    process = subprocess.Popen(["/bin/sh", "-c", f"exec {sys.executable} {arguments} {streams}"])
    service = Service(process, tmp_path)  # type: ignore[arg-type]
    service.url = f"http://127.0.0.1:{port}"
    try:
        wait_for(service.is_ready)
        request = {"prompt": "ab", "max_tokens": 2}
        assert (
            httpx.post(f"{service.url}/v1/completions", json=request, timeout=TIMEOUT_S).status_code
            == 200
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
