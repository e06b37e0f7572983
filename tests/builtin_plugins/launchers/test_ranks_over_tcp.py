"""Ranks that a launcher reaches over TCP: the tokens of `mp`, and ports that refuse strangers."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.errors import EngineError
from core.models.layers.parallel import TcpStore
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.executors.test_mp_executor import GREEDY, generate, open_engine, ranks_of
from tests.system.attacks.test_exposure import listening

PREFIXED = str(Path(__file__).parents[3] / "examples/gallery/prefixed.py")
HOST = "127.0.0.2"
GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(4096),
    b"\xff" * 64,
    b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR.",
    bytes([9]) + (1 << 60).to_bytes(8, "little") + b"x" * 100,
)
"""Requests of other protocols, a pickle, and a length that no message has."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("c") / "llama", seed=2)


def remote(folder: Path, **settings: Any) -> LLM:
    return open_engine(
        folder,
        plugins=[f"+{PREFIXED}", "no:structured_outputs"],
        launcher="prefixed",
        prefix_host=HOST,
        **settings,
    )


def attack(address: str, port: int) -> None:
    for data in GARBAGE:
        with suppress(OSError), socket.create_connection((address, port), timeout=5) as raw:
            raw.settimeout(0.1)
            raw.sendall(data)
            raw.recv(4096)


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_tokens_equal_those_of_mp_while_every_port_is_attacked(
    llama: Path, tensor: int, pipeline: int
) -> None:
    before = listening(os.getpid())  # of other tests in this process
    with open_engine(llama, tensor, pipeline) as llm:
        expected = generate(llm, GREEDY)
    with remote(llama, tensor=tensor, pipeline=pipeline) as llm:
        assert generate(llm, GREEDY) == expected
        ports = set().union(*(listening(pid) for pid in [os.getpid(), *ranks(os.getpid())]))
        ports -= before
        assert {address for address, _ in ports} == {HOST}
        assert len(ports) >= 4  # two of each channel
        for address, port in ports:
            attack(address, port)
        assert generate(llm, GREEDY) == expected


def ranks(parent: int) -> list[int]:
    """Return the process ids of the ranks that a launcher has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_child = b"remote_child" in (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if is_child and int(fields[1]) == parent:
                found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_address_of_no_interface_stops_the_start(llama: Path) -> None:
    with pytest.raises(EngineError, match=r"--prefix-host: got 192\.0\.2\.1; expected an address"):
        open_engine(
            llama,
            2,
            plugins=[f"+{PREFIXED}", "no:structured_outputs"],
            launcher="prefixed",
            prefix_host="192.0.2.1",
        )
    assert ranks_of(os.getpid()) == []


def test_store_listens_on_its_address_until_the_ranks_have_met() -> None:
    import torch.distributed as dist

    before = listening(os.getpid())
    store = TcpStore(HOST)
    (opened,) = listening(os.getpid()) - before
    assert opened[0] == HOST
    attack(*opened)
    client = dist.TCPStore(HOST, opened[1], is_master=False, wait_for_workers=False)
    client.set("key", "value")
    assert client.get("key") == b"value"
    del client
    store.close()
    assert listening(os.getpid()) == before
