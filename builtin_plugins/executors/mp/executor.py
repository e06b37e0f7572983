"""The `mp` executor: one process per rank on this machine, all given the same plans.

The first tensor-parallel rank of the last stage answers; the others add what features have to say
there. A rank that dies, is silent, or fails a step that others get through ends the executor: what
the ranks hold would no longer agree.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import sys
import tempfile
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.executors.mp.messages import (
    Allocate,
    Allocated,
    Answered,
    Ask,
    Done,
    Fetch,
    Join,
    Leave,
    Loaded,
    Run,
    Said,
    StepFailed,
    Told,
)
from builtin_plugins.executors.mp.rank import RankProcess
from core.api import EngineDead, EngineError, ProcessFrozen, ProcessKilled, WorkerInfo
from core.process.cores import usable_cores
from core.process.messages import Start
from core.process.spawn import TICK_S, thread_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.api import EngineConfig, KVLayout, ModelSource, Registry, StepPlan, StepResult

PATIENCE_S: Final = 3.0
"""For ranks that have not failed a step which others have: they may still, or wait for those for
ever.
"""
LAST_WORDS_S: Final = 0.5
"""After one rank's end, for those of others: it may be the consequence of theirs."""
GRACE_S: Final = 2.0
"""For ranks that were told to leave."""


class ProcessExecutor:
    """Spawns the ranks in `start`.

    Depth 2 lets them go on with the next plan while the last result is taken.
    """

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource) -> None:
        del source  # every rank finds the model by itself
        self.told: Callable[[str, bytes], None] = lambda name, data: None
        """Called, from any thread, with what a rank's half of a feature tells outside of steps."""
        parallel = config.parallel
        self.depth = 2 if config.scheduler.async_scheduling else 1
        self._config = config
        self._plugins = registry.plan
        self._tensor = parallel.tensor_parallel_size
        self._size = self._tensor * parallel.pipeline_parallel_size
        self._ranks: list[RankProcess] = []
        self._heard: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._encode = msgspec.msgpack.Encoder().encode
        self._fetch = self._encode(Fetch())
        self._in_flight: deque[int] = deque()
        self._reports = False
        """What every rank says of a step counts, not only the one that samples."""
        self._results: dict[int, StepResult] = {}
        self._said: dict[int, dict[int, dict[str, list[bytes]]]] = {}
        """By step: what features have to say on each rank."""
        self._failures: dict[int, dict[int, str]] = {}
        """By step: what each rank that failed it says."""
        self._death: EngineError | None = None
        self._closed = False

    def start(self) -> WorkerInfo:
        """Start the processes, let them meet and load the model.

        Raises what the first one could not start for.
        """
        self._check_alive()
        folder = tempfile.mkdtemp(prefix=f"engine-ranks-{os.getpid()}-")
        try:
            environment = thread_environment(
                self._config.device.num_threads or max(1, usable_cores() // self._size)
            )
            for rank in range(self._size):
                self._ranks.append(RankProcess(self._start_of(rank), environment, self._hear_later))
                self._ranks[rank].send(Join(folder))
            loaded = self._answers(Loaded)
            self._infos = [answer.info for answer in loaded]
            self._reports = any(answer.reports for answer in loaded)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return WorkerInfo.combine(self._infos, self._tensor)

    def _start_of(self, rank: int) -> Start:
        return Start(
            target="builtin_plugins.executors.mp.loop:run",
            process=_name(rank),
            plan=self._plugins,
            config=self._config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(logging.getLogger("core").getEffectiveLevel()).lower(),
            rank=rank,
        )

    def allocate(self, layout: KVLayout) -> None:
        """Let every rank make the cache of its layers."""
        first_layer = 0
        for rank in self._ranks:
            rank.send(Allocate(layout, first_layer))
            if rank.rank % self._tensor == self._tensor - 1:
                first_layer += len(self._infos[rank.rank].layers)
        self._answers(Allocated)

    def submit(self, plan: StepPlan) -> None:
        """Send one plan to every rank, which begins it."""
        self._send(self._encode(Run(plan)))
        self._in_flight.append(plan.step)

    def collect(self) -> StepResult:
        """Return the oldest plan's result. Raises `EngineDead` when there is none to come, ever."""
        self._check_alive()
        self._send(self._fetch)
        step = self._in_flight.popleft()
        waited_s = 0.0
        while not self._is_complete(step):
            failures = self._failures.get(step, {})
            if len(failures) == self._size:
                raise self._failed(step)
            if waited_s > PATIENCE_S:
                raise self._dead(EngineDead(self._split(step)))
            if not self._take() and failures:
                waited_s += TICK_S
        for failed in [
            number
            for number, by in self._failures.items()
            if number <= step and len(by) < self._size
        ]:
            raise self._dead(EngineDead(self._split(failed)))
        self._results = {
            number: result for number, result in self._results.items() if number >= step
        }
        said = self._said.pop(step, {})
        result = self._results.pop(step)
        if not self._reports:
            return result
        together: dict[str, list[bytes]] = {}
        for rank in sorted(said):
            for name, payloads in said[rank].items():
                together.setdefault(name, []).extend(payloads)
        return msgspec.structs.replace(result, payloads=together)

    def _is_complete(self, step: int) -> bool:
        return step in self._results and (not self._reports or len(self._said[step]) == self._size)

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Return what the ranks answer.

        Raises what all of them have failed with, `EngineDead` where only some have.
        """
        self._check_alive()
        self._send(self._encode(Ask(name, data)))
        try:
            answers: list[Answered] = self._answers(Answered)
        except EngineDead:
            raise
        except EngineError as error:
            raise self._dead(EngineDead(str(error))) from error
        faults = {
            rank: answer.fault for rank, answer in enumerate(answers) if answer.fault is not None
        }
        if len(faults) == self._size:
            raise faults[0].error()
        if faults:
            said = "; ".join(
                f"{self._ranks[rank].label}: {fault.message}" for rank, fault in faults.items()
            )
            raise self._dead(
                EngineDead(
                    f"{name} failed on {len(faults)} of {self._size} ranks, not on all: {said}"
                )
            )
        return [answer.data for answer in answers if answer.data is not None]

    def _send(self, message: Any) -> None:
        for rank in self._ranks:
            rank.send(message)

    def _take(self) -> bool:
        """Take one message about a step; False when none came within a tick."""
        try:
            heard = self._hear()
        except EngineDead:
            raise
        except EngineError as error:
            raise self._dead(EngineDead(str(error))) from error
        if heard is None:
            return False
        self._note(*heard)
        return True

    def _note(self, rank: int, message: Any) -> None:
        """Keep what a rank says of a step."""
        if isinstance(message, Done):
            self._results[message.result.step] = message.result
            message = Said(message.result.step, message.result.payloads)
        if isinstance(message, Said):
            self._said.setdefault(message.step, {})[rank] = message.payloads
        elif isinstance(message, StepFailed):
            self._failures.setdefault(message.step, {})[rank] = message.message

    def _failed(self, step: int) -> EngineError:
        """Return what every rank has failed with; the next step can run if that was one fault, met
        by all alike.
        """
        said = self._failures[step].items()
        texts = {text.replace(f"'{_name(rank)}'", "'worker'") for rank, text in said if text}
        if len(texts) > 1:
            return self._dead(EngineDead(self._split(step)))
        del self._failures[step]
        return EngineError(texts.pop())

    def _split(self, step: int) -> str:
        failed = "; ".join(
            f"{self._ranks[rank].label}: {text}" for rank, text in self._failures[step].items()
        )
        return f"step {step} failed on {len(self._failures[step])} of {self._size} ranks, not on all alike: {failed}"

    def silence_s(self) -> float:
        """Return for how long the most silent rank has given no sign of life."""
        return max((rank.silence_s for rank in self._ranks), default=0.0)

    def shutdown(self) -> None:
        """End every process; safe to call twice and in any state."""
        at_once = self._death is not None or self._closed
        self._closed = True
        for rank in self._ranks:
            rank.hush()
            if not at_once:
                rank.send(Leave())
        for rank in self._ranks:
            rank.close(0.0 if at_once else GRACE_S)

    # --- hearing ranks

    def _answers(self, kind: type) -> list[Any]:
        """Wait for one message of this kind from every rank; return them in the order of ranks."""
        answers: dict[int, Any] = {}
        while len(answers) < self._size:
            heard = self._hear()
            if heard is None:
                continue
            rank, message = heard
            if isinstance(message, kind):
                answers[rank] = message
            else:
                self._note(rank, message)  # of a step that has begun
        return [answers[rank] for rank in range(self._size)]

    def _hear_later(self, rank: int, message: Any) -> None:
        if isinstance(message, Told):
            self.told(message.name, message.data)
        else:
            self._heard.put((rank, message))

    def _hear(self) -> tuple[int, Any] | None:
        """Return what some rank says, None when none said anything within a tick.

        Raises the error one ended with.
        """
        try:
            rank, message = self._heard.get(timeout=TICK_S)
        except queue.Empty:
            self._check_pulse()
            return None
        if isinstance(message, EngineError):
            raise self._dead(self._cause(message))
        return rank, message

    def _cause(self, error: EngineError) -> EngineError:
        """Return the error that explains the others: a rank whose partner has died may be heard of
        first.
        """
        errors = [error]
        while True:
            try:
                _, message = self._heard.get(timeout=LAST_WORDS_S)
            except queue.Empty:
                return max(errors, key=lambda error: isinstance(error, ProcessKilled))
            if isinstance(message, EngineError):
                errors.append(message)

    def _check_pulse(self) -> None:
        most_s = self._config.service.heartbeat_timeout
        for rank in self._ranks:
            if rank.silence_s > most_s:
                rank.kill()
                text = f"process {rank.label} gave no sign of life for {most_s:g} s (--heartbeat-timeout) and was killed"
                raise self._dead(ProcessFrozen(text))

    def _dead(self, error: EngineError) -> EngineError:
        self._death = error
        return error

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDead(str(self._death))
        if self._closed:
            raise RuntimeError("the executor was shut down")


def _name(rank: int) -> str:
    return f"worker {rank}"
