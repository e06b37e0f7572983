"""Environment of a new plugin author: engine wheel and third-party packages, no checkout."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.served import COLD
from tests.timeouts import TIMEOUT_S

ROOT: Final = Path(__file__).parents[3]
LIBRARY: Final = ROOT / "kernels" / "core_kernels" / "libcore_kernels.so"


class Newcomer:
    """A virtual environment with the engine's wheel in it, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        self._link_packages()
        wheel = _build_wheel(folder)
        self.run(
            str(self.bin / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        )
        # a wheel has it; compiling it again would take minutes, and is tested with the wheel's
        # content
        if LIBRARY.is_file():
            shutil.copy2(LIBRARY, self.site / "core_kernels")

    @property
    def site(self) -> Path:
        """Where packages are installed."""
        (found,) = (self.folder / "venv").glob("lib/python*/site-packages")
        return found

    def run(self, *command: str, shell: bool = False) -> str:
        """Run a command and return what it prints; it must go well."""
        done = subprocess.run(
            command[0] if shell else command,
            shell=shell,
            cwd=self.folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
        return done.stdout

    def engine(self, *arguments: str) -> str:
        """Run `engine`, as the wheel installs it."""
        return self.run(str(self.bin / "engine"), *arguments)

    @contextmanager
    def serving(self, model: str, *flags: str) -> Iterator[str]:
        """Run `engine serve` and yield its address once it answers."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
        command = [str(self.bin / "engine"), "serve", model, "--port", port, *COLD, *flags]
        with (
            (self.folder / "serve.log").open("w+") as log,
            subprocess.Popen(
                command, cwd=self.folder, env=self.variables(), stdout=log, stderr=log
            ) as process,
        ):
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_for(url, process, Path(log.name))
                yield url
            finally:
                process.terminate()
                process.wait(TIMEOUT_S)

    def variables(self) -> dict[str, str]:
        """Return environment variables; pip is offline and builds without isolation."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ENGINE_", "PYTHON", "COV_"))
        }
        offline = {
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        return {
            **inherited,
            **offline,
            "PATH": f"{self.bin}{os.pathsep}{inherited['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def _link_packages(self) -> None:
        """Link the third-party packages of this environment, but not the engine."""
        linked = self.folder / "third_parties"
        linked.mkdir()
        for packages in (Path(path) for path in sys.path if path.endswith("-packages")):
            for each in packages.iterdir():
                ours = each.name.startswith(
                    ("core-", "core_kernels", "__editable__", "engine_", "__pycache__")
                )
                if not ours and not (linked / each.name).exists():
                    (linked / each.name).symlink_to(each)
        # a plain path: .pth files of editable installs are not processed
        (self.site / "third_parties.pth").write_text(f"{linked}\n")


def post(url: str, body: Any) -> str:
    """Send a POST with JSON, or a GET without a body; return the response text.

    Raises `AssertionError` with the error message.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read().decode()}") from error
    return text


@contextmanager
def machine_time_s() -> Iterator[list[float]]:
    """Yield a list that gets the processor time, in seconds, of all processes that began and ended
    meanwhile.
    """

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    found = []
    yield found
    found.append(spent() - before)


def _build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of what git tracks; no compiler is found, so that it takes
    seconds.
    """
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in files:
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        "source",
    ]
    blind = {**os.environ, "PATH": ""}
    done = subprocess.run(
        command, cwd=folder, env=blind, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-6000:]
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=TIMEOUT_S):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer: {log.read_text()[-6000:]}")
