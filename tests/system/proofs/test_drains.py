"""SIGTERM ends a server within its bound, whatever hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.system.proofs.test_api_death import Service, is_gone, serving, wait_for
from tests.timeouts import TIMEOUT_S

STUCK = '''
"""A route with a thread that never ends, as that of a download without an answer."""
import asyncio
import threading

from starlette.responses import PlainTextResponse
from starlette.routing import Route

from core.api import Entry, hookimpl


class Stuck:
    def __init__(self, engine, config):
        pass

    def routes(self):
        return [Route("/stuck", self.hang)]

    async def hang(self, request):
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        return PlainTextResponse("hangs")


@hookimpl
def engine_routes():
    return [Entry("stuck", Stuck, "hangs")]
'''
FAST = '''
"""Makes the deadlines of the parent short."""
from builtin_plugins.commands.serve import end_deadline
from core.api import hookimpl

end_deadline.STOP_S = end_deadline.EXIT_S = 3.0


@hookimpl
def engine_process_start(process):
    pass
'''


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


@contextmanager
def draining(folder: Path, *flags: str, status: int = 0) -> Iterator[Service]:
    """Serve during the block; SIGTERM must then end all processes with `status`."""
    plugin = folder / "fast.py"
    plugin.write_text(FAST)
    bound = ("--shutdown-timeout", "1", "--plugins", str(plugin))
    with serving(folder, "scripted:", *bound, *flags, status=status) as service:
        yield service


@contextmanager
def open_stream(service: Service, **fields: Any) -> Iterator[None]:
    """Keep a stream open during the block, which reads nothing after its first token."""
    body = {"prompt": "ab " * 60, "max_tokens": 400, "ignore_eos": True, "stream": True, **fields}
    content = json.dumps(body).encode()
    port = int(service.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(content)}\r\n"
        connection.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + content)
        data = b""
        while b"data: " not in data:
            part = connection.recv(4096)
            assert part, data
            data += part
        yield


def test_stopped_api_process_is_killed_in_the_end(tmp_path: Path) -> None:
    with draining(tmp_path, status=1) as service:
        os.kill(service.api(), signal.SIGSTOP)
    assert "it did not end in time after a signal and was killed" in service.log()


def test_thread_that_never_ends_does_not_delay_the_end(tmp_path: Path) -> None:
    plugin = tmp_path / "stuck.py"
    plugin.write_text(STUCK)
    with draining(tmp_path, "--plugins", str(plugin)) as service:
        assert httpx.get(f"{service.url}/stuck", timeout=TIMEOUT_S).text == "hangs"


@pytest.mark.slow
def test_stopped_engine_does_not_delay_the_end(tmp_path: Path) -> None:
    with draining(tmp_path) as service, open_stream(service):
        os.kill(service.engine(), signal.SIGSTOP)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 20])
def test_clients_that_read_nothing_do_not_delay_the_end(tmp_path: Path, count: int) -> None:
    with draining(tmp_path, "--max-num-seqs", "32") as service:
        opened = [open_stream(service, logprobs=5) for _ in range(count)]
        for stream in opened:
            stream.__enter__()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_S) == 0
        for stream in opened:
            stream.__exit__(None, None, None)


@pytest.mark.slow
def test_stopped_grammar_process_does_not_delay_the_end(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    with draining(tmp_path) as service:
        form = {"regex": "([a-z]{3}[0-9]{2} ){99}"}
        with open_stream(service, structured_outputs=form):
            grammars = [
                int(stat.parent.name)
                for stat in Path("/proc").glob("[0-9]*/comm")
                if stat.read_text().strip() == "engine-grammars"
                and is_below(int(stat.parent.name), service.process.pid)
            ]
            for pid in grammars:
                os.kill(pid, signal.SIGSTOP)
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(TIMEOUT_S) == 0
        assert grammars
        wait_for(lambda: all(map(is_gone, grammars)))


@pytest.mark.slow
def test_stopped_rank_does_not_delay_the_end(tmp_path: Path, llama: str) -> None:
    flags = ("--tensor-parallel-size", "2", "--shutdown-timeout", "1")
    with serving(tmp_path, llama, *flags) as service:
        ranks = children(service.engine())
        assert ranks
        with open_stream(service, prompt=[5, 6, 7]):
            os.kill(ranks[-1], signal.SIGSTOP)
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(TIMEOUT_S) == 0
        wait_for(lambda: all(map(is_gone, ranks)))


@pytest.mark.slow
def test_second_signal_ends_a_server_with_open_streams(tmp_path: Path) -> None:
    long = ("--shutdown-timeout", "3000")
    with serving(tmp_path, "scripted:", *long) as service, open_stream(service):
        os.kill(service.engine(), signal.SIGSTOP)
        service.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not service.is_ready())
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_S) == 0


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return sorted(found)


def is_below(pid: int, root: int) -> bool:
    while pid not in (0, root):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == root
