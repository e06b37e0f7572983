"""`engine plugins check --against`: missing and private imports of a plugin."""

from __future__ import annotations

import json

import pytest

import core
from core.cli.main import main
from core.testing.plugins import tmp_plugin

PLUGIN = """
from core.api import Entry, Option, hookimpl
from core.api import NoSuchThing
from core.frontend.startup import make_frontend
import core.models.layers.linear
"""


def test_missing_and_private_imports_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with tmp_plugin(PLUGIN, name="old") as path:
        assert main(["plugins", "check", path, "--against", "0.3"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "old.py:3: core.api.NoSuchThing is not in 0.3",
            "old.py:4: core.frontend.startup.make_frontend is private",
            "1 public names missing in 0.3, 1 private names used",
        ]
        assert main(["plugins", "check", path, "--against", "0.3", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
    assert [(use["location"], use["public"]) for use in found] == [
        ("old.py:3", True),
        ("old.py:4", False),
    ]


def test_public_imports_pass(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = (
        "from core.api import Entry, hookimpl\n"
        "from core.api.plugins import PluginRef\n"
        "from core.models.layers.linear import Linear\n"
    )
    version = core.__version__
    with tmp_plugin(plugin, name="new") as path:
        assert main(["plugins", "check", path, "--against", version]) == 0
    assert capsys.readouterr().out == f"0 public names missing in {version}, 0 private names used\n"


@pytest.mark.parametrize(
    ("version", "message"),
    [("soon", "expected a version of the engine"), ("0.0.3", "or newer")],
)
def test_invalid_or_older_version_is_rejected(
    version: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tmp_plugin("", name="new") as path:
        assert main(["plugins", "check", path, "--against", version]) == 2
    assert message in capsys.readouterr().err
