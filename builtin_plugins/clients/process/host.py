"""Starts engine processes with the launcher, and removes what dead ones left."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.clients.process.messages import FromEngine
from builtin_plugins.executors.api import Child, Start
from builtin_plugins.launchers.api import ChildProcess, Group, make_launcher
from builtin_plugins.servers.api import Parent
from core.api import ConfigError, EngineConfig, Registry
from core.api.config import create_option_file

log = logging.getLogger(__name__)


class EngineHost:
    """Starts engine processes and finds the engine of the previous API process."""

    def __init__(
        self,
        config: EngineConfig,
        registry: Registry,
        name: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`name`: key of the engine in the parent; the stored note is the restart count."""
        self._name = name
        self._environment = environment or {}
        self._launcher = make_launcher(config, registry)
        self._parent: Parent | None = registry.shared("parent", lambda: None)
        self._preserved = None if self._parent is None else self._parent.preserved(name)

    @property
    def server_restarts(self) -> int:
        """Number of restarts of the API process."""
        return 0 if self._parent is None else self._parent.restarts

    @property
    def engine_restarts(self) -> int:
        """Number of engine restarts before this API process, one more if the last engine is
        dead.
        """
        if self._preserved is None:
            return 0
        return int(self._preserved.note) + (
            self._preserved.process is None or self._preserved.process.poll() is not None
        )

    def start(self, start: Start) -> ChildProcess:
        """Start an engine."""
        group = Group(self._name, leads=True, outlives_parent=True)
        return self._launcher.start(start, FromEngine, self._environment, group)

    def close(self) -> None:
        """Release what the launcher holds, after the engine's end."""
        self._launcher.close()

    def take_over(self, start: Start) -> Child | None:
        """Return the engine of the previous API process after a request to reconnect; None: none is
        left.
        """
        if self._parent is None or self._preserved is None or self._preserved.process is None:
            return None
        process = self._preserved.process
        if process.poll() is not None:
            return None

        def found(
            command: Sequence[str], *, pass_fds: Sequence[int], **options: Any
        ) -> subprocess.Popen[bytes]:
            os.write(pass_fds[0], b"serving\n")  # the stage pipe is closed; nothing reads it
            popen: subprocess.Popen[bytes] = process
            return popen

        child = Child(start, FromEngine, launch=found)
        self._parent.send_line(process, child.channel.folder)
        return child

    def keep(self, child: ChildProcess | None, restarts: int) -> None:
        """Preserve this engine, or none, for the next API process.

        An engine on another host ends with the API process.
        """
        if self._parent is not None:
            process = child.process if isinstance(child, Child) else None
            self._parent.preserve(self._name, str(restarts).encode(), process=process)


def next_start(start: Start, restarts: int) -> Start:
    """Return the start message after restarts; each process writes its own journal, if it can."""
    config = start.config
    journal: str | None = config.options.get("journal")
    if journal is None or not restarts:
        return start
    journal = f"{journal}.{restarts}"
    try:
        create_option_file("--journal", str(journal)).close()
    except ConfigError as error:
        log.error("--journal ends here, requests go on: %s", error)
        journal = None
    config = dataclasses.replace(config, options={**config.options, "journal": journal})
    return msgspec.structs.replace(start, config=config)


_FOLDER: Final = re.compile(r"engine-(?:ranks-)?(\d+)-\w+")


def remove_leftovers(base: Path | None = None) -> list[Path]:
    """Remove the folders of dead processes without a listening socket; return them.

    The folder name contains the owner's pid. Only this user's folders are removed, and no links.
    """
    removed = []
    base = Path(tempfile.gettempdir()) if base is None else base
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            owner = _FOLDER.fullmatch(folder.name)
            with contextlib.suppress(OSError):  # already removed
                if (
                    owner is not None
                    and _is_engine_folder(folder)
                    and not _is_alive(int(owner[1]))
                    and not _is_used(folder)
                ):
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
    return removed


def _is_engine_folder(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _is_used(folder: Path) -> bool:
    """Return whether a socket in it listens: its owner may be in a container that shares the
    directory.
    """
    return any(
        stat.S_ISSOCK(path.lstat().st_mode) and _has_listener(path) for path in folder.iterdir()
    )


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
