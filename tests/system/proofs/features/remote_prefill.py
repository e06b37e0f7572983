"""Remote prefill: one engine computes prompts, another continues; blocks move through files."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from core.api import Option, hookimpl

NAME = "remote_prefill"


class Block(msgspec.Struct, array_like=True, frozen=True):
    """A block of a pool and its file name."""

    pool: int
    name: str
    block: int


class Job(msgspec.Struct, array_like=True, frozen=True):
    """Blocks of one request to store to files or load from them."""

    request_id: str
    blocks: list[Block]
    load: bool


@hookimpl
def engine_options():
    return [
        Option("hand_role", str, "", "gives or takes."),
        Option("hand_folder", str, "", "Where blocks cross."),
    ]


@hookimpl
def engine_scheduler_extensions(config, registry):
    role = config.options["hand_role"]
    folder = config.options["hand_folder"]
    return [Planner(role, Path(folder), config.parallel.tensor_parallel_size)] if role else []


@hookimpl
def engine_runner_extensions(config, registry):
    return [Mover(Path(config.options["hand_folder"]))] if config.options["hand_role"] else []


def named(group: int, key: bytes) -> str:
    return f"{group}-{key.hex()}"


class Planner:
    """Scheduler half: ended requests pin their blocks until stored; new ones wait for loads."""

    name = NAME

    def __init__(self, role: str, folder: Path, num_ranks: int) -> None:
        self._gives = role == "gives"
        self._folder = folder
        self._num_ranks = num_ranks
        self._jobs: list[Job] = []
        self._done: dict[str, int] = {}
        self.num_crossed = 0

    def attach(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._groups = scheduler.kv.layout.groups
        self._hash = scheduler.kv.layout.hash_block_size
        if not self._gives:
            scheduler.kv.add_tier(self._holds)

    def _holds(self, group: int, key: bytes) -> bool:
        name = named(group, key)
        return all((self._folder / f"{name}.{rank}").exists() for rank in range(self._num_ranks))

    def load(self, request: Any, loads: Any) -> bool:
        mine = [
            Block(self._groups[load.group].pool, named(load.group, load.key), load.block)
            for load in loads
            if not self._gives and self._holds(load.group, load.key)
        ]
        if mine:
            self._jobs.append(Job(request.request_id, mine, True))
        return not mine

    def finished(self, request: Any) -> bool:
        if not self._gives:
            return False
        blocks = []
        for index, group in enumerate(self._groups):
            size = group.block_size
            links = group.block_size // self._hash
            table = request.tables[index]
            for block in range(request.num_published // size):
                if table[block]:
                    key = request.keys[(block + 1) * links - 1]
                    blocks.append(Block(group.pool, named(index, key), table[block]))
        self._jobs.append(Job(request.request_id, blocks, False))
        return True

    def pending(self) -> bool:
        return bool(self._jobs)

    def planned(self, plan: Any) -> bytes | None:
        jobs = self._jobs
        self._jobs = []
        return msgspec.msgpack.encode(jobs) if jobs else None

    def result(self, payload: bytes) -> None:
        request_id = payload.decode()
        self._done[request_id] = self._done.get(request_id, 0) + 1
        if self._done[request_id] == self._num_ranks:  # every rank has its own part of each block
            del self._done[request_id]
            self.num_crossed += 1
            (self._scheduler.release if self._gives else self._scheduler.loaded)(request_id)


class Mover:
    """Worker half: a thread per job, which sends a message when it is done."""

    name = NAME

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def attach(self, parts: Any) -> None:
        self._rank = parts.group.rank
        self._send = parts.send
        self._memory: dict[int, list[Any]] = {}
        for (pool, _), memory in parts.memory.items():
            self._memory.setdefault(pool, []).append(memory)

    def begin(self, payload: bytes | None) -> None:
        for job in () if payload is None else msgspec.msgpack.decode(payload, type=list[Job]):
            threading.Thread(target=self._move, args=(job,)).start()

    def _move(self, job: Job) -> None:
        import torch

        for block in job.blocks:
            path = self._folder / f"{block.name}.{self._rank}"
            slots = self._memory[block.pool]
            if job.load:
                data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(
                    len(slots), -1
                )
                for memory, part in zip(slots, data, strict=True):
                    memory[block.block].copy_(part)
            else:
                data = torch.stack([memory[block.block] for memory in slots])
                unready = path.with_suffix(f".{self._rank}.part")
                unready.write_bytes(data.numpy().tobytes())
                os.replace(unready, path)
        self._send(job.request_id.encode())
