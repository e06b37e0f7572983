"""Two nodes at 127.0.0.2 and 127.0.0.3: the tokens of one, deaths, and what listens where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from builtin_plugins.launchers.nodes.launcher import NodesLauncher
from core.config.build import config_from_kwargs
from core.testing.checkpoints import make_checkpoint
from scripts.generate_docs import builtins
from tests.builtin_plugins.executors.test_mp_executor import GREEDY, SEEDED, generate, open_engine
from tests.builtin_plugins.launchers.nodes.test_node_refusals import (
    HEAD,
    OPTIONS,
    free_port,
    key_file,
)
from tests.builtin_plugins.launchers.test_ranks_over_tcp import attack, ranks
from tests.system.attacks.test_exposure import listening
from tests.system.proofs.test_api_death import Service, is_gone, serving, wait_for
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow
NODE = "127.0.0.3"
COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
BODY = {"prompt": [5, 9, 30, 7], "max_tokens": 200, "temperature": 0, "ignore_eos": True}


class NodeUnderTest:
    """`engine serve --headless`; with `restarts` started again when it ends."""

    def __init__(self, folder: Path, model: Path, *flags: str, restarts: bool = False) -> None:
        command = ["serve", str(model), "--headless", "--node-rank", "1", "--node-address", NODE]
        self._command = [sys.executable, "-P", "-c", COMMAND, *command, *flags]
        self._log = folder / "node.log"
        self._restarts = restarts
        self.process = self._start()
        self._orchestrator = threading.Thread(target=self._follow)
        self._orchestrator.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen([*self._command, "--log-level", "info"], stderr=log)

    def _follow(self) -> None:
        self.process.wait()
        while self._restarts:
            self.process = self._start()
            self.process.wait()

    def ranks(self) -> list[int]:
        return ranks(self.process.pid)

    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self._restarts = False
        while self._orchestrator.is_alive():
            self.process.kill()
            self._orchestrator.join(0.1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("c") / "llama", seed=2)


@pytest.fixture
def meeting(tmp_path: Path) -> dict[str, Any]:
    """Return the settings that head and node have in common."""
    key = key_file(tmp_path / "key", b"k")
    return {
        "nnodes": 2,
        "master_addr": HEAD,
        "master_port": free_port(),
        "node_key": key,
        "node_timeout": TIMEOUT_S,
    }


def flags_of(settings: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


@contextmanager
def started(
    folder: Path, model: Path, *flags: str, restarts: bool = False
) -> Iterator[NodeUnderTest]:
    node = NodeUnderTest(folder, model, *flags, restarts=restarts)
    try:
        yield node
    finally:
        node.close()


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_two_nodes_give_the_tokens_of_one_and_listen_at_their_addresses(
    tensor: int, pipeline: int, llama: Path, meeting: dict[str, Any], tmp_path: Path
) -> None:
    before = listening(os.getpid())  # of other tests in this process
    with open_engine(llama, tensor, pipeline) as llm:
        expected = [generate(llm, sampling) for sampling in (GREEDY, SEEDED)]
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    with started(tmp_path, llama, *flags_of(meeting | sizes)) as node:
        with open_engine(llama, tensor, pipeline, **meeting) as llm:
            assert [generate(llm, sampling) for sampling in (GREEDY, SEEDED)] == expected
            (own,) = ranks(os.getpid())
            (other,) = node.ranks()
            of_head = (listening(os.getpid()) - before) | listening(own)
            of_node = listening(other)
            assert {address for address, _ in of_head} == {HEAD}
            assert (HEAD, meeting["master_port"]) in of_head
            assert {address for address, _ in of_node} == {NODE}
            assert listening(node.process.pid) == set()
            for address, port in of_head | of_node:
                attack(address, port)
            assert generate(llm, GREEDY) == expected[0]
        node.process.wait(TIMEOUT_S)
        wait_for(lambda: is_gone(own) and is_gone(other))


def test_model_with_other_weights_on_the_node_is_refused_by_name(
    llama: Path, meeting: dict[str, Any], tmp_path: Path
) -> None:
    """The path is the same: the node has another folder there."""
    folder = tmp_path / "model"
    folder.symlink_to(llama)
    with started(tmp_path, folder, *flags_of(meeting)) as node:
        wait_for(lambda: "waiting" in node.log())  # it has read its model
        folder.unlink()
        folder.symlink_to(make_checkpoint("LlamaForCausalLM", tmp_path / "other", seed=3))
        head = {"model": str(folder), "tensor_parallel_size": 2, **meeting}
        launcher = NodesLauncher(config_from_kwargs(head, OPTIONS), builtins())
        launcher._open_port()
        try:
            assert node.process.wait(TIMEOUT_S) == 2
        finally:
            launcher.close()
        assert "MODEL: got other files" in node.log()


def answer(service: Service) -> str:
    reply = httpx.post(f"{service.url}/v1/completions", json=BODY, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_killed_rank_and_killed_node_come_back_with_the_same_tokens(
    llama: Path, meeting: dict[str, Any], tmp_path: Path
) -> None:
    flags = [*flags_of(meeting), "--tensor-parallel-size", "2"]
    with (
        started(tmp_path, llama, *flags, restarts=True) as node,
        serving(tmp_path, str(llama), *flags) as service,
    ):
        expected = answer(service)
        for victim in (lambda: node.ranks()[0], lambda: node.process.pid, service.engine):
            old = node.ranks()
            os.kill(victim(), signal.SIGKILL)
            wait_for(lambda old=old: all(map(is_gone, old)))
            assert answer(service) == expected
            wait_for(node.ranks)


def test_idle_head_notices_the_end_of_a_rank_and_of_a_node_without_heartbeats(
    llama: Path, meeting: dict[str, Any], tmp_path: Path
) -> None:
    flags = [*flags_of(meeting), "--tensor-parallel-size", "2", "--heartbeat-timeout", "86400"]
    with (
        started(tmp_path, llama, *flags, restarts=True) as node,
        serving(tmp_path, str(llama), *flags) as service,
    ):
        expected = answer(service)
        notices = {
            "it was killed by SIGKILL": lambda: node.ranks()[0],
            f"node 1 at {NODE} has left": lambda: node.process.pid,
        }
        for number, (notice, victim) in enumerate(notices.items(), 1):
            wait_for(node.ranks)
            os.kill(victim(), signal.SIGKILL)
            wait_for(lambda n=number: f"the engine is back (restart {n})" in service.log())
            assert f"cause: {notice}" in service.log()
            assert answer(service) == expected


def test_both_sides_end_when_the_head_is_killed(
    llama: Path, meeting: dict[str, Any], tmp_path: Path
) -> None:
    flags = [*flags_of(meeting), "--tensor-parallel-size", "2"]
    with (
        started(tmp_path, llama, *flags) as node,
        serving(tmp_path, str(llama), *flags, status=None) as service,
    ):
        answer(service)
        left = [*service.below(), *node.ranks()]
        service.process.kill()
        assert node.process.wait(TIMEOUT_S) == 1
        wait_for(lambda: all(map(is_gone, left)))
        assert f"the head at {HEAD}:{meeting['master_port']} has left" in node.log()
