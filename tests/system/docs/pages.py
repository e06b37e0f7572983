"""Reading the pages of the documentation, and holding a terminal session against what really
happens.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.timeouts import TIMEOUT_S

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "docs"
BLOCK: Final = re.compile(
    r"^```([\w-]+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
INCLUDE: Final = re.compile(r'^--8<-- "([^"]+)"\n', re.MULTILINE)
DONE: Final = "-- done --"


def blocks(page: Path) -> Iterator[tuple[str, str | None, str]]:
    """Yield (language, title, text) of each fenced block, included files expanded."""
    for match in BLOCK.finditer(page.read_text()):
        text = INCLUDE.sub(lambda found: (ROOT / found[1]).read_text(), match[3])
        yield match[1], match[2], text


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block (`$ `, and `> ` for its further lines) with the lines it is
    said to print.
    """
    command = ""
    expected = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command = line[2:]
            expected = []
        elif line.startswith("> ") and not expected:
            command += "\n" + line[2:]
        else:
            expected.append(line)
    yield command, expected


class Session:
    """A shell that runs the commands of one page one after the other, so that one may leave
    something running.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> list[str]:
        """Return the lines a command prints, without empty ones at the end."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, self._kill)
        watchdog.start()
        self._shell.stdin.write(f"{command}\nprintf '\\n{DONE}\\n'\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.rstrip("\n") == DONE:
                break
            lines.append(line.rstrip())
        else:
            lines.append(f"(the shell was ended: it took more than {TIMEOUT_S:g} s)")
        watchdog.cancel()
        return "\n".join(lines).rstrip().splitlines()

    def close(self) -> None:
        """End the shell and what it has started; processes of an engine end with it."""
        self._kill()
        self._shell.wait()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                pipe.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)


def same(said: str, seen: str) -> bool:
    """Compare two lines but for what differs from run to run: numbers, s or ms, days, folders,
    random names.
    """
    return _plain(said) == _plain(seen)


def _plain(line: str) -> str:
    line = re.sub(r"engine-\w{8}\b", "engine-*", line)
    line = re.sub(r"(?:/[\w.+-]+)+/([\w.+-]+)", r"\1", line)
    line = re.sub(r"python[\d.]*", "python", line)
    line = re.sub(r"\b[0-9a-f]{32}\b", "#", line)
    line = re.sub(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} ", "day ", line)
    line = re.sub(r"\d+(?:[.,]\d+)*", "#", line)
    return " ".join(line.replace("# ms", "# s").split())


def matches(expected: list[str], seen: list[str]) -> bool:
    """Say whether these lines come in this order; a line `...` stands for any number of others."""
    if not expected:
        return not seen
    if expected[0] == "...":
        return any(matches(expected[1:], seen[i:]) for i in range(len(seen) + 1))
    return bool(seen) and same(expected[0], seen[0]) and matches(expected[1:], seen[1:])
