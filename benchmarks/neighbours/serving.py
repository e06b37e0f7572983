"""Server of the demo model in its own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENGINE = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from core.cli.main import main; sys.exit(main())",
)
TIMEOUT_S = 120.0


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    host: str
    port: int

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self.host}:{self.port}"

    def rss_mb(self) -> dict[str, int]:
        """Return the memory of its processes in MB, by position in the tree and name."""
        found: dict[str, int] = {}
        for pid in _tree(self.process.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:]
            except OSError:
                continue
            resident = next(
                (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")), "0"
            )
            found[f"{pid} {name}"] = int(resident) // 1024
        return found

    def stop(self) -> float:
        """Stop it; return the shutdown time in seconds."""
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(TIMEOUT_S)
        return time.monotonic() - began_s


@contextmanager
def served(*flags: str) -> Iterator[Served]:
    """Run `engine serve` on a free port."""
    process = subprocess.Popen(
        [*ENGINE, "serve", *flags, "--port", "0", "--disable-uvicorn-access-log"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        host, _, port = line.split()[-1].removeprefix("http://").partition(":")
        yield Served(process, host, int(port))
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(TIMEOUT_S)


def _tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [root]
    for pid in found:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found
