"""Example distributions work in a fresh environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.plugins.scaffold import write_package
from core.plugin import KINDS
from tests.served import COLD

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = {
    "logits_processor": ("token_sets", "logits_processors"),
    "model_architecture": ("vaultgemma", "models"),
    "http_route": ("token_budget", "routes"),
}
ENGINE = "import sys; from core.cli.main import main; sys.exit(main())"


class Environment:
    """A virtual environment in which the examples are installed, and what this one has besides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        venv.create(folder / "venv", symlinks=True)
        packages = [path for path in sys.path if path.endswith("-packages")]
        (own,) = (folder / "venv").glob("lib/python*/site-packages")
        # addsitedir, unlike a plain path, also follows the links that editable installations leave.
        own.joinpath("outer.pth").write_text(
            "".join(f"import site; site.addsitedir({path!r})\n" for path in packages)
        )
        for name in NAMES:
            ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
            shutil.copytree(EXAMPLES / name, folder / name, ignore=ignore)
        offline = [
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--disable-pip-version-check",
            "--quiet",
        ]
        self.run("-m", "pip", "install", *offline, *(str(folder / name) for name in NAMES))

    def run(self, *argv: str) -> str:
        """Run this environment's Python and return what it prints."""
        done = subprocess.run(
            [str(self.python), *argv],
            cwd=self.folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    def engine(self, *argv: str) -> str:
        """Run `engine`."""
        return self.run("-c", ENGINE, *argv)

    @contextmanager
    def serving(self, *argv: str) -> Iterator[str]:
        """Run `engine serve` and yield its address."""
        command = [
            str(self.python),
            "-c",
            ENGINE,
            "serve",
            "scripted:",
            "--port",
            "0",
            *COLD,
            *argv,
        ]
        with subprocess.Popen(
            command, env=self.variables(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                line = next((line for line in process.stdout if "Serving" in line), "")
                address = re.search(r"http://\S+", line)
                assert address is not None, line
                yield address[0]
            finally:
                process.terminate()

    @staticmethod
    def variables() -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("fresh"))


@pytest.mark.parametrize("folder", NAMES)
def test_examples_follow_the_template(tmp_path: Path, folder: str) -> None:
    name, kind = NAMES[folder]
    made = {file.relative_to(tmp_path) for file in write_package(name, kind, tmp_path)}
    assert {file for file in made if not (EXAMPLES / folder / file).is_file()} == set()
    assert (EXAMPLES / folder / "pyproject.toml").read_text() == (
        tmp_path / "pyproject.toml"
    ).read_text()
    assert kind in KINDS


def test_list_shows_the_installed_examples(environment: Environment) -> None:
    rows = {row["name"]: row for row in json.loads(environment.engine("plugins", "list", "--json"))}
    for name, _ in NAMES.values():
        distribution = f"engine-{name.replace('_', '-')}"
        status = "off" if name == "token_budget" else "on"  # its routes wait until it is named
        expected = {
            "distribution": distribution,
            "version": "0.1.0",
            "builtin": False,
            "status": status,
        }
        assert {key: rows[name][key] for key in expected} == expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "token_sets" else pytest.mark.slow)
        for name, _ in NAMES.values()
    ],
)
def test_check_passes_an_installed_example(environment: Environment, name: str) -> None:
    results = json.loads(environment.engine("plugins", "check", name, "--json"))
    assert [result for result in results if not result["passed"]] == []
    assert len(results) > 4


def test_the_examples_own_tests_pass(environment: Environment) -> None:
    folders = [str(environment.folder / name) for name in NAMES]
    environment.run("-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders)


@pytest.mark.slow
def test_an_installed_route_is_served_only_when_its_plugin_is_named(
    environment: Environment,
) -> None:
    body = json.dumps({"text": "twelve bytes"}).encode()

    def post(address: str) -> Any:
        with urllib.request.urlopen(f"{address}/v1/token_budget", data=body) as answer:
            return json.load(answer)

    with environment.serving("--plugins", "+token_budget") as address:
        assert post(address)["tokens"] == 12
    with environment.serving() as address, pytest.raises(urllib.error.HTTPError, match="404"):
        post(address)
