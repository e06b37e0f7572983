"""Metadata of installed distributions that is broken or false: refused by name, or harmless."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import PluginError
from core.plugin import load_plan, make_plan
from core.plugin.discovery import GROUP, discover

GOOD = "Metadata-Version: 2.1\nName: hostile\nVersion: 1\n"
PLUGIN = f"[{GROUP}]\nhostile = json\n"
FOLDER = "hostile-1.dist-info"


def install(folder: Path, metadata: str | None, entry_points: str) -> None:
    info = folder / FOLDER
    info.mkdir()
    if metadata is not None:
        (info / "METADATA").write_text(metadata, encoding="latin-1")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.mark.parametrize(
    ("metadata", "entry_points"),
    [
        (None, PLUGIN),
        ("Metadata-Version: 2.1\nVersion: 1\n", PLUGIN),
        ("Metadata-Version: 2.1\nName: hostile\n", PLUGIN),
        ("\0\xff", PLUGIN),
        (GOOD, f"[{GROUP}]\nhostile\n"),
        (GOOD, f"[{GROUP}]\nhostile = \n"),
        (GOOD, f"[{GROUP}]\nhostile = ../../etc:passwd\n"),
        (GOOD, f"[{GROUP}]\nhostile\x1b[31m = json\n"),
        (GOOD, f"[{GROUP}]\n{'x' * 100_000} = json\n"),
    ],
    ids=[
        *("no METADATA", "no name", "no version", "no text"),
        *("no value", "empty value", "value of a path", "control characters", "huge name"),
    ],
)
def test_broken_metadata_is_refused_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str | None, entry_points: str
) -> None:
    install(tmp_path, metadata, entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=rf"{tmp_path}/{FOLDER}: the metadata .*Reinstall") as e:
        make_plan([])
    assert len(str(e.value)) < 1000
    assert str(e.value).isprintable()


def test_missing_module_is_refused_with_the_flag_that_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, GOOD, f"[{GROUP}]\nhostile = nowhere.at.all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=r"'hostile' .*nowhere.*--plugins no:hostile"):
        load_plan(make_plan([]))
    load_plan(make_plan(["no:hostile"]))


def test_two_names_of_one_module_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, GOOD, f"[{GROUP}]\nhostile = json\nother = json\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=r"'hostile' .*cannot be registered") as caught:
        load_plan(make_plan([]))
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("name", ["core", "kernel"])
def test_false_name_is_no_builtin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    distribution = "core" if name == "core" else "hostile"
    plugin = "hostile" if name == "core" else "kernel"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9\n"
    install(tmp_path, metadata, f"[{GROUP}]\n{plugin} = json\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = [ref for ref in discover() if ref.target == "json"]
    assert not found.builtin
    assert next(iter(discover())).target == "core.kernel_plugin"
    assert make_plan([]).plugins[0].target == "core.kernel_plugin"
