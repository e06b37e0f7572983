"""`engine pull` downloads a model once; `engine models --on-disk` lists what is there."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

from builtin_plugins.commands.models.on_disk import MAX_FOLDERS, models_in_folders
from builtin_plugins.model_sources.huggingface.progress import ProgressLog, progress_class
from core.api.config import config_from_kwargs
from core.cli.main import main
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import make_checkpoint
from tests.hub_server import REPOSITORY, Hub, hub_server


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "checkpoint"
    make_checkpoint("LlamaForCausalLM", folder)
    return folder


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.is_file()}
    files |= {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
    with hub_server(files, tmp_path / "cache", monkeypatch) as served:
        yield served


def test_model_is_downloaded_once_and_then_found(
    hub: Hub, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", REPOSITORY]) == 0
    first = capsys.readouterr().out.splitlines()
    assert first[0].startswith(f"{REPOSITORY}: ")
    assert first[0].endswith("to download")
    assert first[1].startswith(f"{REPOSITORY}: LlamaForCausalLM, native, in ")
    assert {"config.json", "model.safetensors"} <= set(hub.downloads)
    hub.downloads.clear()
    assert main(["pull", REPOSITORY]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("0 bytes to download")
    assert hub.downloads == []
    registry = load_plan(make_plan([]))
    config = config_from_kwargs({"model": REPOSITORY}, registry.options())
    source = registry.find_model(REPOSITORY, config)
    assert source is not None
    weights = Path(source.path) / "model.safetensors"
    assert weights.read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_code_and_pickles_are_not_downloaded(hub: Hub) -> None:
    assert main(["pull", REPOSITORY]) == 0
    assert not set(hub.downloads) & {"modeling.py", "pytorch_model.bin"}


def test_dry_run_prints_sizes_and_downloads_nothing(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", REPOSITORY, "--dry-run"]) == 0
    assert " to download" in capsys.readouterr().out
    assert hub.downloads == []


def test_flags_name_another_folder_and_ignored_files(hub: Hub, tmp_path: Path) -> None:
    flags = ("--download-dir", str(tmp_path / "other"), "--ignore-patterns", "*.safetensors")
    assert main(["pull", REPOSITORY, *flags]) == 0
    assert len(list((tmp_path / "other").rglob("snapshots/*/config.json"))) == 1
    assert not list((tmp_path / "cache").rglob("config.json"))
    assert "model.safetensors" not in hub.downloads


@pytest.mark.slow  # the client waits for a second before it tries again
def test_broken_download_is_repeated(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    weights = (checkpoint / "model.safetensors").read_bytes()
    hub.cut_bytes = len(weights) // 2
    assert main(["pull", REPOSITORY]) == 0
    assert hub.downloads.count("model.safetensors") == 2
    (stored,) = (tmp_path / "cache").rglob("snapshots/*/model.safetensors")
    assert stored.read_bytes() == weights


def test_only_what_is_missing_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    assert main(["pull", REPOSITORY]) == 0
    (stored,) = (tmp_path / "cache").rglob("snapshots/*/model.safetensors")
    stored.resolve().unlink()
    stored.unlink()
    hub.downloads.clear()
    assert main(["pull", REPOSITORY]) == 0
    assert set(hub.downloads) == {"model.safetensors"}
    assert stored.read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "neither a local folder nor a repository"),
        (403, "GatedRepo", "is gated: accept its terms"),
        (404, "RevisionNotFound", "has no revision None; check --revision"),
    ],
)
@pytest.mark.parametrize("flags", [(), pytest.param(("--dry-run",), marks=pytest.mark.slow)])
def test_refusal_of_the_hub_names_the_remedy(
    hub: Hub,
    capsys: pytest.CaptureFixture[str],
    status: int,
    code: str,
    message: str,
    flags: tuple[str, ...],
) -> None:
    hub.errors["other/model"] = (status, code)
    assert main(["pull", "other/model", *flags]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["./folder", "a/b/c", "demo:vision", ""])
def test_other_names_than_hub_ids_are_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "owner/name", name]) == 2
    assert f"MODEL: got {name!r}; expected the id" in capsys.readouterr().err


def test_full_disk_is_named_before_the_download(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    assert main(["pull", REPOSITORY]) == 2
    assert "with 100 bytes free; expected" in capsys.readouterr().err
    assert hub.downloads == []


def test_cached_model_needs_no_network(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", REPOSITORY]) == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["pull", REPOSITORY]) == 0
    assert "LlamaForCausalLM, native, in " in capsys.readouterr().out


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_logged_where_there_is_no_terminal(
    hub: Hub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = (
        "builtin_plugins.model_sources.huggingface.progress.ProgressLog.__init__.__defaults__"
    )
    monkeypatch.setattr(interval, (0.0,))
    with caplog.at_level(logging.INFO, "builtin_plugins"):
        assert main(["pull", REPOSITORY]) == 0
    assert any(f"{REPOSITORY}: " in text and "MB/s" in text for text in caplog.messages)


def test_progress_lines_keep_their_interval(caplog: pytest.LogCaptureFixture) -> None:
    progress = ProgressLog("a/b", interval_s=3600)
    with caplog.at_level(logging.INFO, "builtin_plugins"):
        progress.report(5e6, 1e7)
    assert caplog.messages == []


def test_progress_can_be_turned_off() -> None:
    assert progress_class("a/b") is not None
    disable_progress_bars()
    try:
        assert progress_class("a/b") is None
    finally:
        enable_progress_bars()


# --- on the disk ----------------------------------------------------------------------------------


def on_disk(capsys: pytest.CaptureFixture[str], *folders: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["models", "--json", "--on-disk", *folders]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_downloaded_model_is_listed_with_its_size(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_disk(capsys) == []
    assert main(["pull", REPOSITORY]) == 0
    (found,) = on_disk(capsys)
    assert (found["name"], found["architecture"]) == (REPOSITORY, "LlamaForCausalLM")
    assert (found["how"], found["is_complete"]) == ("native", True)
    size = sum(len(hub.files[name]) for name in set(hub.downloads))
    assert found["num_bytes"] == size
    assert main(["models"]) == 0
    assert f"\n{REPOSITORY} " in capsys.readouterr().out


def test_model_without_weights_is_incomplete(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", REPOSITORY, "--ignore-patterns", "*.safetensors"]) == 0
    (found,) = on_disk(capsys)
    assert found["is_complete"] is False
    assert main(["models", "--on-disk"]) == 0
    assert "native, incomplete" in capsys.readouterr().out


def test_models_in_folders_are_listed(
    hub: Hub, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "all" / "owner" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    (adapter.parent / "broken").mkdir()
    (adapter.parent / "broken" / "config.json").write_text("{")
    shutil.copytree(checkpoint, tmp_path / "all" / "model")
    found = {Path(str(each["name"])).name: each for each in on_disk(capsys, str(tmp_path / "all"))}
    assert found["model"]["architecture"] == "LlamaForCausalLM"
    assert found["adapter"]["architecture"] == "adapter of a/b"
    assert found["broken"]["architecture"] == "unreadable config"
    assert found.keys() == {"model", "adapter", "broken"}


def test_number_of_folders_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FOLDERS > 100
    monkeypatch.setattr("builtin_plugins.commands.models.on_disk.MAX_FOLDERS", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text("{}")
    assert len(list(models_in_folders([tmp_path]))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama", "--on-disk"), "--on-disk: got a filter"),
        (("--on-disk", "/nowhere"), "--on-disk: got /nowhere; expected a folder"),
    ],
)
def test_contradicting_arguments_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *arguments]) == 2
    assert message in capsys.readouterr().err
