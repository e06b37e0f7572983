"""Processes of models: their settings, their output in the server's log, and why they ended."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builtin_plugins.commands.serve.models.process import LoadFailed, ModelProcess, ProcessStarter
from builtin_plugins.commands.serve.models.settings import ModelSettings
from builtin_plugins.servers.api import PreservedState

SETTINGS = ModelSettings(("tiny",), "m", {"model": "m", "seed": 3, "api_key": ["k"]}, None)


def shell(script: str, *, prefix: bool = True) -> ModelProcess:
    """Return a process of a model that runs this script."""
    reading, writing = os.pipe()
    process = subprocess.Popen(["sh", "-c", script], stdout=writing, stderr=writing)
    os.close(writing)
    return ModelProcess(SETTINGS, "/nowhere.sock", process, reading, prefix=prefix)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo a; echo 'engine: error: no weights'; echo '  at b'; exit 1", "no weights\n  at b"),
        ("echo start; exit 3", "its process exited with status 3"),
        ("kill -KILL $$", "its process was killed by SIGKILL"),
    ],
)
def test_a_process_that_ends_early_says_why(script: str, reason: str) -> None:
    async def test() -> str:
        process = shell(script)
        process.follow()
        with pytest.raises(LoadFailed) as caught:
            await process.ready()
        await process.stop()
        return str(caught.value)

    assert asyncio.run(test()) == reason


@pytest.mark.parametrize(("prefix", "line"), [(True, "[tiny] one"), (False, "one")])
def test_output_is_logged_with_the_name_of_the_model(
    prefix: bool, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        process = shell("echo one; exec sleep 600", prefix=prefix)
        process.follow()
        text = ""
        while not text:
            await asyncio.sleep(0.01)
            text = capsys.readouterr().err
        assert text.splitlines() == [line]
        await process.stop()
        assert process.process.returncode == -signal.SIGTERM

    asyncio.run(test())


class FakeParent:
    """Records what the parent is to launch and to preserve."""

    def __init__(self) -> None:
        self.launched: list[tuple[list[str], dict[str, Any]]] = []
        self.items: dict[str, PreservedState] = {}

    def launch(self, command: list[str], **options: Any) -> Any:
        self.launched.append((command, options))
        return subprocess.Popen(["sleep", "600"])

    def preserve(self, name: str, note: bytes = b"", **rest: Any) -> None:
        descriptors = tuple(map(os.dup, rest.get("descriptors", ())))
        self.items[name] = PreservedState(note, descriptors, rest.get("process"))

    def preserved(self, name: str) -> PreservedState | None:
        return self.items.get(name)


def test_settings_reach_a_process_in_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_API_KEY", "secret")
    monkeypatch.setenv("ENGINE_CONFIG", "other.toml")
    parent: Any = FakeParent()
    starter = ProcessStarter(tmp_path, parent, json_logs=False)
    process = starter.start(4, SETTINGS)
    ((command, options),) = parent.launched
    file = tmp_path / "4.yaml"
    assert str(file) in command
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert yaml.safe_load(file.read_text()) == {**SETTINGS.values, "uds": process.address.uds}
    assert not {"ENGINE_API_KEY", "ENGINE_CONFIG"} & options["env"].keys()
    assert options["env"]["FORWARDED_ALLOW_IPS"] == "*"
    asyncio.run(process.stop())


def test_a_preserved_process_is_found_until_it_ends(tmp_path: Path) -> None:
    parent: Any = FakeParent()
    starter = ProcessStarter(tmp_path, parent, json_logs=False)
    assert starter.preserved(SETTINGS) is None
    process = starter.start(0, SETTINGS)
    starter.preserve(SETTINGS, process)
    found = starter.preserved(SETTINGS)
    assert found is not None
    assert found.address == process.address
    asyncio.run(process.stop())
    assert starter.preserved(SETTINGS) is None
    os.close(found.output)
    for item in parent.items.values():
        for descriptor in item.descriptors:
            os.close(descriptor)
    starter.preserve(SETTINGS, None)
    assert starter.preserved(SETTINGS) is None
