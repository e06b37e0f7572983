"""Tensor-parallel groups and pipelines of rank processes, over torch.distributed.

Ranks of one machine find each other through a file in a private folder and communicate over the
loopback interface only. Ranks of several hosts find each other at a TCP store and communicate over
the addresses they were started with. Nothing is pickled: only tensors of known shapes are sent.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed

from core.model_spec.parallel import ParallelGroup, Pipeline

_dist: Any = torch.distributed  # its names have no type information
LOOPBACK: Final = "127.0.0.1"
TCP: Final = "tcp://"
COLLECTIVE_TIMEOUT: Final = timedelta(hours=1)
"""Timeout of a collective; the executor detects a dead rank earlier."""

HIDDEN: Final = 0
ANSWER: Final = 1
EAGER: Final = 2
"""Tags of hidden states, of the last stage's answers, and of small hidden states."""

EAGER_BYTES: Final = 1 << 20
"""Largest hidden states that are sent before the next stage waits for them."""
EAGER_BUFFERS: Final = 2
"""Small hidden states that can arrive while a stage computes."""

Connect = Callable[[Any, int, int], Any]
"""Maps a store, a rank and a size to a process group of torch.distributed."""


def gloo(store: Any, rank: int, size: int, host: str = LOOPBACK) -> Any:
    """Return a Gloo group of CPU ranks; `host` is this rank's own address."""
    backend = _dist.ProcessGroupGloo
    options = backend._Options()
    options._devices = [backend.create_device(hostname=host)]
    options._timeout = COLLECTIVE_TIMEOUT
    return backend(store, rank, size, options)


def meet(
    place: str,
    rank: int,
    tensor: int,
    pipeline: int,
    connect: Connect = gloo,
    partition: Sequence[int] = (),
    device: str = "cpu",
) -> tuple[ParallelGroup, Pipeline]:
    """Return this rank's tensor-parallel group and pipeline; blocks until both are complete.

    `place` is a folder that is private to the ranks of one model, or `tcp://HOST:PORT` of a store.
    Ranks are numbered stage by stage, with `tensor` ranks per stage. `partition` as in `Pipeline`.
    `device`: that of the tensors that groups from `connect` transfer.
    """
    store = _open_store(place, tensor * pipeline)
    stage, tensor_rank = divmod(rank, tensor)

    def group_of(name: str, own: int, size: int) -> Any:
        return connect(_dist.PrefixStore(name, store), own, size)

    group = (
        ParallelGroup()
        if tensor == 1
        else Group(group_of(f"tensor {stage}", tensor_rank, tensor), tensor, tensor_rank, device)
    )
    if pipeline == 1:
        return group, Pipeline()
    stages = group_of(f"pipeline {tensor_rank}", stage, pipeline)
    # Transfers of other groups than Gloo's have no tags, and wait for each other.
    answers = stages if _is_gloo(stages) else group_of(f"answers {tensor_rank}", stage, pipeline)
    return group, Chain(stages, pipeline, stage, partition, answers, device)


def _is_gloo(process_group: Any) -> bool:
    return isinstance(process_group, getattr(_dist, "ProcessGroupGloo", ()))


def _open_store(place: str, num_ranks: int) -> Any:
    if not place.startswith(TCP):
        return _dist.FileStore(f"{place}/ranks", num_ranks)
    host, _, port = place.removeprefix(TCP).rpartition(":")
    return _dist.TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False)


class TcpStore:
    """The store at which ranks of several hosts meet; listens on one address until `close`.

    It has no authentication: every process that reaches the address can read and change the
    addresses that ranks exchange.
    """

    def __init__(self, host: str) -> None:
        """`host`: an IP address of this host; the store listens on no other."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        port = listener.getsockname()[1]
        self.place: Final = f"{TCP}[{host}]:{port}" if ":" in host else f"{TCP}{host}:{port}"
        self._store = _dist.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def close(self) -> None:
        """Stop listening. May be called twice."""
        self._store = None


class Group(ParallelGroup):
    """Tensor-parallel group: its ranks split every layer."""

    def __init__(self, process_group: Any, size: int, rank: int, device: str = "cpu") -> None:
        super().__init__(size, rank)
        self._group = process_group
        if not _is_gloo(process_group):  # others connect with the first sum, by the store
            self.all_reduce(torch.zeros(1, device=device))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks, bitwise equal on all ranks."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the concatenation of all ranks' x along the last dimension."""
        parts = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(self.size)]
        self._group.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, -1)


class Chain(Pipeline):
    """Pipeline of stages, each with a range of the layers."""

    def __init__(
        self,
        process_group: Any,
        size: int,
        rank: int,
        partition: Sequence[int] = (),
        answers: Any = None,
        device: str = "cpu",
    ) -> None:
        """`answers`: the group for answers of the last stage; default: `process_group`."""
        super().__init__(size, rank, partition)
        self._group = process_group
        self._answer_group = process_group if answers is None else answers
        self._hidden = _Sender(process_group, HIDDEN)
        self._small_hidden = _Sender(process_group, EAGER)
        self._answers = _Sender(self._answer_group, ANSWER)
        self._is_eager = _is_gloo(process_group)
        if not self._is_eager:
            self._connecting = list(self._connect(device))
        elif not self.is_first:
            self._inbox = _Inbox(process_group, rank - 1)

    def _connect(self, device: str) -> Iterator[tuple[torch.Tensor, Any]]:
        """Transfer a number between stages that send to each other; yield it and its transfer.

        Groups other than Gloo's connect two ranks with their first transfer, by the store, which
        exists only now.
        """
        last = self.size - 1
        transfers = [(self._group, HIDDEN, stage, stage + 1) for stage in range(last)]
        transfers += [(self._answer_group, ANSWER, last, stage) for stage in range(last)]
        for group, tag, sender, receiver in transfers:
            x = torch.zeros(1, device=device)
            if self.rank == sender:
                yield x, group.send([x], receiver, tag)
            elif self.rank == receiver:
                yield x, group.recv([x], sender, tag)

    def send(self, x: torch.Tensor) -> None:
        """Start to send x to the next stage; waits while the previous x is on its way.

        The next stage receives when it is done with its own step, small tensors before. Without
        waiting for that, this stage can start its next step.
        """
        sender = self._small_hidden if self._sends_eagerly(x) else self._hidden
        sender.start(x.contiguous(), [self.rank + 1])

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Receive x from the previous stage."""
        if self._sends_eagerly(x):
            self._inbox.take(x)
        else:
            self._group.recv([x], self.rank - 1, HIDDEN).wait()
        return x

    def _sends_eagerly(self, x: torch.Tensor) -> bool:
        """Return whether x travels before its receiver waits; equal on both sides."""
        return self._is_eager and 0 < x.nbytes <= EAGER_BYTES

    def from_last(self, x: torch.Tensor) -> Callable[[], object]:
        """Start to overwrite x with the last stage's; return a function that waits for it.

        Sends to each stage: a broadcast takes the threads of a process group, and their wake-ups.
        """
        if not self.is_last:
            return _Arrival(self._answer_group.recv([x], self.size - 1, ANSWER)).wait
        self._answers.start(x, range(self.size - 1))
        return lambda: None


class _Sender:
    """Sends one tensor at a time, and keeps it alive on its way."""

    def __init__(self, process_group: Any, tag: int) -> None:
        self._group = process_group
        self._tag = tag
        self._works: list[Any] = []
        self._tensors: list[torch.Tensor] = []

    def start(self, x: torch.Tensor, ranks: Iterable[int]) -> None:
        """Wait until the previous tensor has arrived, then start to send x."""
        for work in self._works:
            work.wait()
        self._tensors = [x]
        self._works = [self._group.send(self._tensors, rank, self._tag) for rank in ranks]


class _Inbox:
    """Receives small tensors of one rank while this one computes.

    Gloo sends data only to a receiver that waits. One that begins to wait late wakes the sender's
    thread, its own and itself one after the other.
    """

    def __init__(self, process_group: Any, rank: int) -> None:
        self._group = process_group
        self._rank = rank
        self._posted: deque[tuple[torch.Tensor, Any]] = deque()
        """(buffer, its transfer), in order of arrival."""
        for _ in range(EAGER_BUFFERS):
            self._post(torch.empty(EAGER_BYTES, dtype=torch.uint8))

    def _post(self, buffer: torch.Tensor) -> None:
        self._posted.append((buffer, self._group.recv([buffer], self._rank, EAGER)))

    def take(self, x: torch.Tensor) -> None:
        """Overwrite x with the next tensor, which has its size."""
        buffer, work = self._posted.popleft()
        work.wait()
        flat = x.view(-1).view(torch.uint8)
        flat.copy_(buffer[: len(flat)])
        self._post(buffer)


class _Arrival:
    """A transfer to this rank that several threads wait for; gloo wakes only one."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for the data, or return at once if it is here."""
        with self._lock:
            if self._work is not None:
                self._work.wait()
                self._work = None
