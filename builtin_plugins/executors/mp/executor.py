"""The `mp` executor: one process per rank, started by a launcher; all ranks run the same plans.

The first tensor-parallel rank of the last stage returns the results; the others add payloads of
features. A rank that dies, freezes, or fails a step that others complete ends the executor, since
the ranks' states would diverge.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.executors.api import TICK_S, Start, thread_environment
from builtin_plugins.executors.mp.devices import device_environment
from builtin_plugins.executors.mp.expert_parallel import check_experts
from builtin_plugins.executors.mp.messages import (
    Allocate,
    Allocated,
    FeatureAnswer,
    FeatureCall,
    FeatureMessage,
    FetchResult,
    Join,
    Loaded,
    RunStep,
    Shutdown,
    StepDone,
    StepFailed,
    StepPayloads,
)
from builtin_plugins.executors.mp.rank import RankProcess
from builtin_plugins.executors.mp.rendezvous import rendezvous
from builtin_plugins.executors.pipeline.partition import check_partition
from builtin_plugins.launchers.api import Group, launcher_of_ranks, make_launcher, ranks_per_node
from builtin_plugins.platforms.api import usable_cores
from core.api import EngineDead, EngineError
from core.api.execution import ProcessFrozen, ProcessKilled, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.api import EngineConfig, Registry
    from core.api.execution import StepPlan, StepResult
    from core.api.models import ModelSource
    from core.api.plugins import PluginPlan
    from core.model_spec.kv import KVLayout

STEP_TIMEOUT_S: Final = 3.0
"""Time for ranks to finish a step that others have failed; they may wait for those forever."""
LAST_ERRORS_S: Final = 0.5
"""Time to collect errors of other ranks after one has ended: they may be the cause."""
GRACE_S: Final = 2.0
"""Time for ranks to exit after `Shutdown`."""


class _StepMessages:
    """Results, payloads and failures of the ranks, by step."""

    def __init__(self) -> None:
        self.reports = False
        """Whether the payloads of every rank are needed, not only those of the sampling one."""
        self.results: dict[int, StepResult] = {}
        self.payloads: dict[int, dict[int, dict[str, list[bytes]]]] = {}
        """Feature payloads by step and rank."""
        self.failures: dict[int, dict[int, str]] = {}
        """Error messages by step and rank."""

    def record(self, rank: int, message: Any) -> None:
        """Record a rank's result, payloads or failure of a step."""
        if isinstance(message, StepDone):
            self.results[message.result.step] = message.result
            message = StepPayloads(message.result.step, message.result.payloads)
        if isinstance(message, StepPayloads):
            self.payloads.setdefault(message.step, {})[rank] = message.payloads
        elif isinstance(message, StepFailed):
            self.failures.setdefault(message.step, {})[rank] = message.message

    def is_complete(self, step: int, num_ranks: int) -> bool:
        """Return whether all messages of a successful step have arrived."""
        if step not in self.results:
            return False
        return not self.reports or len(self.payloads[step]) == num_ranks

    def take_result(self, step: int) -> StepResult:
        """Return a complete step's result, with the payloads of all ranks if needed."""
        self.results = {n: result for n, result in self.results.items() if n >= step}
        payloads = self.payloads.pop(step, {})
        result = self.results.pop(step)
        if not self.reports:
            return result
        merged: dict[str, list[bytes]] = {}
        for rank in sorted(payloads):
            for name, own in payloads[rank].items():
                merged.setdefault(name, []).extend(own)
        return msgspec.structs.replace(result, payloads=merged)


class ProcessExecutor:
    """Spawns and drives the rank processes.

    Each pipeline stage has a plan in flight; with asynchronous scheduling, the next one is sent
    while the oldest result is read.
    """

    def __init__(
        self, config: EngineConfig, registry: Registry, source: ModelSource, *, launcher: str = ""
    ) -> None:
        """`launcher`: name of the ranks' launcher; default: that of the configuration."""
        check_partition(config, source, registry)
        check_experts(config, source, registry)
        self.on_message: Callable[[str, bytes], None] = lambda name, data: None
        """Callback, from any thread, for payloads of worker halves outside of steps."""
        parallel = config.parallel
        self.depth = parallel.pipeline_parallel_size + bool(config.scheduler.async_scheduling)
        self._config = config
        self._plugins = registry.plan
        self._launcher = make_launcher(config, registry, launcher or launcher_of_ranks(config))
        self._tensor = parallel.tensor_parallel_size
        self._size = self._tensor * parallel.pipeline_parallel_size
        self._ranks: list[RankProcess] = []
        self._messages: queue.Queue[tuple[int, Any]] = queue.Queue()
        self._encode = msgspec.msgpack.Encoder().encode
        self._fetch = self._encode(FetchResult())
        self._in_flight: deque[int] = deque()
        self._steps = _StepMessages()
        self._death: EngineError | None = None
        self._closed = False

    def start(self) -> WorkerInfo:
        """Start the processes, join them to a group and load the model.

        Raises the first rank's start error.
        """
        self._check_alive()
        share = max(1, usable_cores() // ranks_per_node(self._config))
        threads = self._config.device.num_threads or share
        environment = thread_environment(threads)
        # The ranks lead no process groups, so killing the engine's also reaches a frozen rank.
        group = Group("ranks", self._size)
        with rendezvous(self._launcher.host) as place:
            for rank in range(self._size):
                start = _start_of(rank, self._plugins, self._config)
                own = {**environment, **device_environment(self._config, rank)}
                process = RankProcess(self._launcher, start, own, group, self._receive_later)
                self._ranks.append(process)
                process.send(Join(place))
            loaded = self._answers(Loaded)
            self._infos = [answer.info for answer in loaded]
            self._steps.reports = any(answer.reports for answer in loaded)
        return WorkerInfo.combine(self._infos, self._tensor)

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache of every rank's layers."""
        first_layer = 0
        for rank in self._ranks:
            rank.send(Allocate(layout, first_layer))
            if rank.rank % self._tensor == self._tensor - 1:
                first_layer += len(self._infos[rank.rank].layers)
        self._answers(Allocated)

    # --- steps -----------------------------------------------------------------------------------

    def submit(self, plan: StepPlan) -> None:
        """Send a plan to every rank, which launches it."""
        self._send(self._encode(RunStep(plan)))
        self._in_flight.append(plan.step)

    def collect(self) -> StepResult:
        """Return the oldest plan's result. Raises `EngineDead` if the ranks have diverged."""
        self._check_alive()
        self._send(self._fetch)
        step = self._in_flight.popleft()
        waited_s = 0.0
        while not self._steps.is_complete(step, self._size):
            failures = self._steps.failures.get(step, {})
            if len(failures) == self._size:
                raise self._step_error(step)
            if waited_s > STEP_TIMEOUT_S:
                raise self._dead(EngineDead(self._divergence(step)))
            if not self._receive_step_message() and failures:
                waited_s += TICK_S
        self._check_divergence(step)
        return self._steps.take_result(step)

    def _check_divergence(self, step: int) -> None:
        """Raise `EngineDead` if some ranks failed a step up to this one and others did not."""
        for number, by_rank in self._steps.failures.items():
            if number <= step and len(by_rank) < self._size:
                raise self._dead(EngineDead(self._divergence(number)))

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Return the ranks' answers to `feature.verb`.

        Raises the error if all ranks fail, `EngineDead` if only some do.
        """
        self._check_alive()
        self._send(self._encode(FeatureCall(name, data)))
        try:
            answers: list[FeatureAnswer] = self._answers(FeatureAnswer)
        except EngineDead:
            raise
        except EngineError as error:
            raise self._dead(EngineDead(str(error))) from error
        faults = {rank: a.fault for rank, a in enumerate(answers) if a.fault is not None}
        if len(faults) == self._size:
            raise faults[0].error()
        if faults:
            labels = {rank: self._ranks[rank].label for rank in faults}
            text = "; ".join(f"{labels[rank]}: {fault.message}" for rank, fault in faults.items())
            raise self._dead(
                EngineDead(
                    f"{name} failed on {len(faults)} of {self._size} ranks, not on all: {text}"
                )
            )
        return [answer.data for answer in answers if answer.data is not None]

    def _send(self, message: Any) -> None:
        for rank in self._ranks:
            rank.send(message)

    def _step_error(self, step: int) -> EngineError:
        """Return the error that every rank has; the next step can run if all have the same."""
        messages = self._steps.failures[step].items()
        texts = {text.replace(f"'{_name(rank)}'", "'worker'") for rank, text in messages if text}
        if len(texts) > 1:
            return self._dead(EngineDead(self._divergence(step)))
        del self._steps.failures[step]
        return EngineError(texts.pop())

    def _divergence(self, step: int) -> str:
        failures = self._steps.failures[step]
        labels = {rank: self._ranks[rank].label for rank in failures}
        text = "; ".join(f"{labels[rank]}: {message}" for rank, message in failures.items())
        return (
            f"step {step} failed on {len(failures)} of {self._size} ranks, not on all alike: {text}"
        )

    # --- messages of ranks -----------------------------------------------------------------------

    def _receive_step_message(self, timeout_s: float = TICK_S) -> bool:
        """Record one message about a step; False if none arrived in time."""
        try:
            received = self._receive(timeout_s)
        except EngineDead:
            raise
        except EngineError as error:
            raise self._dead(EngineDead(str(error))) from error
        if received is None:
            return False
        self._steps.record(*received)
        return True

    def _answers(self, kind: type) -> list[Any]:
        """Wait for one message of this kind from every rank; return them in rank order."""
        answers: dict[int, Any] = {}
        while len(answers) < self._size:
            received = self._receive()
            if received is None:
                continue
            rank, message = received
            if isinstance(message, kind):
                answers[rank] = message
            else:
                self._steps.record(rank, message)  # of a launched step
        return [answers[rank] for rank in range(self._size)]

    def _receive_later(self, rank: int, message: Any) -> None:
        if isinstance(message, FeatureMessage):
            self.on_message(message.name, message.data)
            return
        self._messages.put((rank, message))
        if isinstance(message, EngineError):
            self.on_message("", b"")  # an idle engine reads no messages

    def _receive(self, timeout_s: float = TICK_S) -> tuple[int, Any] | None:
        """Return (rank, message), or None after the timeout. Raises the error that ended a rank."""
        try:
            rank, message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            self._check_heartbeats()
            return None
        if isinstance(message, EngineError):
            raise self._dead(self._cause(message))
        return rank, message

    def _cause(self, error: EngineError) -> EngineError:
        """Return the error that explains the others: a dead rank's partner may report first."""
        errors = [error]
        while True:
            try:
                _, message = self._messages.get(timeout=LAST_ERRORS_S)
            except queue.Empty:
                return max(errors, key=lambda error: isinstance(error, ProcessKilled))
            if isinstance(message, EngineError):
                errors.append(message)

    def _check_heartbeats(self) -> None:
        timeout_s = self._config.service.heartbeat_timeout
        for rank in self._ranks:
            if rank.silence_s > timeout_s:
                rank.kill()
                raise self._dead(
                    ProcessFrozen(
                        f"process {rank.label} gave no sign of life for {timeout_s:g} s "
                        f"(--heartbeat-timeout) and was killed"
                    )
                )

    # --- state -----------------------------------------------------------------------------------

    def check_health(self) -> None:
        """Raise the error that ended a rank, if one did; waits for nothing."""
        while self._receive_step_message(0.0):
            pass

    def silence_s(self) -> float:
        """Return the maximum of the ranks' seconds since their last heartbeat."""
        return max((rank.silence_s for rank in self._ranks), default=0.0)

    def shutdown(self) -> None:
        """End every process; safe to call twice and in any state."""
        at_once = self._death is not None or self._closed
        self._closed = True
        for rank in self._ranks:
            rank.stop_listening()
            if not at_once:
                rank.send(Shutdown())
        for rank in self._ranks:
            rank.close(0.0 if at_once else GRACE_S)
        self._launcher.close()

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


def _start_of(rank: int, plan: PluginPlan, config: EngineConfig) -> Start:
    level = logging.getLogger("core").getEffectiveLevel()
    return Start(
        target="builtin_plugins.executors.mp.loop:run",
        process=_name(rank),
        plan=plan,
        config=config,
        sys_path=[os.path.abspath(folder) for folder in sys.path],
        log_level=logging.getLevelName(level).lower(),
        rank=rank,
    )
