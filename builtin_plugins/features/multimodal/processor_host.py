"""The frontend's side of the input processor's process: starts it, and sends it prompts.

If the process is killed, the prompt it worked on fails and the process is started again for the
others.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.executors.api import Child, Connected, Failed, Start, thread_environment
from builtin_plugins.features.multimodal.messages import (
    Begun,
    OpenStore,
    Prepare,
    Prepared,
    Ready,
)
from builtin_plugins.features.multimodal.store import TensorStore, make_folder, remove_folder
from core.api import EngineConfig, EngineDead, EngineError, Registry, RequestFailed

log = logging.getLogger(__name__)

TARGET: Final = "builtin_plugins.features.multimodal.processor_process:run"
FromProcessor = Connected | Failed | Ready | Begun | Prepared
POLL_S: Final = 0.1
MAX_RESTARTS: Final = 3
"""Restarts in a row that do not become ready; then requests with items are refused."""


class ProcessorHost:
    """Answers prompts by the process; any thread may call `submit`."""

    def __init__(self, config: EngineConfig, registry: Registry, store_bytes: int) -> None:
        self.folder: Final = make_folder()
        self._start = Start(
            target=TARGET,
            process="input processor",
            plan=registry.plan,
            config=config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(logging.getLogger("core").getEffectiveLevel()).lower(),
        )
        self._store_bytes = store_bytes
        self._numbers = count()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, tuple[Prepare, Future[Prepared]]] = OrderedDict()
        """Prompts that were sent, in this order."""
        self._num_restarts = 0
        """Restarts since the process was ready for the last time."""
        self._begun: int | None = None
        """The prompt that the process works on."""
        self._ready = threading.Event()
        self._error: EngineError | None = None
        self._state = _State(self.folder)
        self._end = weakref.finalize(self, _State.close, self._state)
        self._launch()
        # The thread must not keep the host alive.
        self._thread = threading.Thread(
            target=_receive_all, args=(weakref.ref(self), self._state), name="input-processor"
        )
        self._thread.daemon = True
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until the processor is loaded. Raises its start-up failure."""
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def submit(self, request: Prepare) -> Future[Prepared]:
        """Return the future answer to a prompt; `RequestFailed` if it ended the process."""
        future: Future[Prepared] = Future()
        with self._lock:
            if self._error is not None:
                raise self._error
            request = msgspec.structs.replace(request, number=next(self._numbers))
            self._open[request.number] = request, future
            self._state.child.channel.send(request)
        return future

    def close(self) -> None:
        """Kill the process, remove its tensors and wait for the thread."""
        self._fail(EngineDead("the input processor has been stopped"))
        self._end()
        self._thread.join()

    def _launch(self) -> None:
        child = Child(
            self._start,
            FromProcessor,
            leader=False,
            environment={**thread_environment(1), "TRANSFORMERS_VERBOSITY": "error"},
        )
        child.channel.send(OpenStore(self.folder, self._store_bytes))
        self._state.child = child

    def _received(self, message: Any) -> None:
        if isinstance(message, Ready):
            self._num_restarts = 0
            self._ready.set()
        elif isinstance(message, Begun):
            self._begun = message.number
        elif isinstance(message, Prepared):
            self._begun = None
            with self._lock:
                request, future = self._open.pop(message.number)
            if future.set_running_or_notify_cancel():
                future.set_result(message)
            else:  # the client has left
                TensorStore(self.folder).release(request.holder)

    def _ended(self, error: EngineError) -> bool:
        """Handle the end of the process; return whether it was started again."""
        self._num_restarts += 1
        may_restart = self._ready.is_set() and self._num_restarts <= MAX_RESTARTS
        if not may_restart or not isinstance(error, EngineDead):
            self._fail(error)
            return False
        log.error("the input processor has ended and is started again: %s", error)
        with self._lock:
            old = self._state.child
            self._launch()
            old.close()
            failed = self._open.pop(self._begun, None) if self._begun is not None else None
            self._begun = None
            for request, _ in self._open.values():
                self._state.child.channel.send(request)
        if failed is not None:
            text = "its processing ended the input processor. Send another image."
            _set_error(failed[1], RequestFailed(f"multi_modal_data: {text}"))
        return True

    def _fail(self, error: EngineError) -> None:
        with self._lock:
            self._error = self._error or error
            waiting = [future for _, future in self._open.values()]
            self._open.clear()
        self._ready.set()
        for future in waiting:
            _set_error(future, error)


def _set_error(future: Future[Prepared], error: EngineError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


class _State:
    """What ends with the host: the process and the folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.child: Child
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()
        self.child.kill()
        remove_folder(Path(self.folder))


def _receive_all(host: weakref.ref[ProcessorHost], state: _State) -> None:
    """Receive the process's messages until the host is closed."""
    while not state.closed.is_set():
        failure: EngineError | None = None
        message = None
        try:
            message = state.child.receive(POLL_S)
        except EngineError as error:
            failure = error
        owner = host()
        if owner is None or state.closed.is_set():
            break
        if failure is not None and not owner._ended(failure):
            break
        if message is not None:
            owner._received(message)
        del owner
    state.child.close()
