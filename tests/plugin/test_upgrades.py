"""What is promised to plugins is kept: those of every release so far work, and what will go is told
beforehand.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import frozen
import pytest
from packaging.version import Version

import core
from builtin_plugins.commands.plugins.releases import FOLDER, minor, public_names, released
from core.cli.main import main
from core.deprecated import DEPRECATIONS
from core.testing.conformance import check_plugin
from core.testing.plugins import tmp_plugin

SHA256: Final[Mapping[str, str]] = {
    "0.1": "5560f8edb9e91bcfd5862fd914a4ee2a21bef7865e547017dea78ac759442069"
}
"""Of the plugins of each release, which nobody writes anew."""
RELEASES: Final = frozen.releases()


def test_plugins_of_releases_are_as_they_were() -> None:
    found = {
        release: hashlib.sha256((frozen.HERE / f"{release}.txt").read_bytes()).hexdigest()
        for release in RELEASES
    }
    assert found == SHA256


@pytest.mark.parametrize("release", sorted(file.stem for file in FOLDER.glob("*.json")))
def test_every_name_that_a_release_promised_is_there(release: str) -> None:
    now = public_names()
    gone = {item.name for item in DEPRECATIONS if Version(item.gone) <= Version(core.__version__)}
    before = json.loads((FOLDER / f"{release}.json").read_text())
    missing = {
        f"{module}.{name}"
        for module, names in before.items()
        for name in names
        if name not in now.get(module, ())
    }
    assert missing - gone == set()


def test_this_release_is_written_down() -> None:
    version = Version(core.__version__)
    assert (FOLDER / f"{minor(version)}.json").is_file()
    assert released(version) == public_names()


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_plugins_of_a_release_work_with_deprecations_at_most(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = frozen.thaw(release, tmp_path)
    assert len(modules) >= 30
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        failed = [
            f"{module}: {each}"
            for module in modules
            for each in check_plugin(module)
            if not each.passed
        ]
    assert failed == []
    ours = [each for each in warned if "core" in Path(each.filename).parts]
    assert [
        str(each.message) for each in ours if not issubclass(each.category, DeprecationWarning)
    ] == []


OLD = """
from core.api import Entry, Option, hookimpl
from core.api import NoSuchThing
from core.engine.front import make_front
import core.models.layers.linear

class Half:
    def extra_tokens(self, request):
        return 0

    def load(self, layer, suffix, tensor, part):
        pass
"""


def test_what_a_plugin_uses_that_will_go_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with tmp_plugin(OLD, name="old") as path:
        assert main(["plugins", "check", path, "--against", "0.3"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "old.py:3: core.api.NoSuchThing is not in 0.3",
            "old.py:4: core.engine.front.make_front is private: no release promises it",
            "old.py:8: extra_tokens(request) of a scheduler extension: write guesses(rows)",
            "2 uses do not fit 0.3, 1 are promised by none",
        ]
        assert main(["plugins", "check", path, "--against", "0.2", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
    assert [(use["place"], use["promised"]) for use in found] == [
        ("old.py:3", True),
        ("old.py:4", False),
    ]


def test_what_fits_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with tmp_plugin(
        "from core.api import Entry, hookimpl\nfrom core.models.layers.linear import Linear",
        name="new",
    ) as path:
        assert main(["plugins", "check", path, "--against", core.__version__]) == 0
    assert (
        capsys.readouterr().out == f"0 uses do not fit {core.__version__}, 0 are promised by none\n"
    )


@pytest.mark.parametrize(
    ("version", "says"), [("soon", "is no version of the engine"), ("0.0.3", "known are 0.1")]
)
def test_a_version_that_nothing_is_known_of_is_refused(
    version: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tmp_plugin("", name="new") as path:
        assert main(["plugins", "check", path, "--against", version]) == 2
    assert says in capsys.readouterr().err
