"""The command `engine plugins`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.cli.main import main
from core.testing.plugins import fake_dist, tmp_plugin

PLUGIN = """
from core.api import Entry, Option, hookimpl

EXAMPLE_ORDER = [{"arrival_s": 5.0}, {"arrival_s": 1.0}]

class Newest:
    def key(self, request):
        return (-request.arrival_s,)

@hookimpl
def engine_scheduling_policies():
    return [Entry("newest", Newest, "the newest first", priority=-1, when={"device": "cpu"})]

@hookimpl
def engine_options():
    return [Option("newest_of", int, 3, "How many.")]
"""


@pytest.fixture(autouse=True)
def acme() -> Iterator[None]:
    with fake_dist(
        "engine-acme",
        "1.2",
        {"acme": "engine_acme", "shy": "engine_acme [opt_in]"},
        {"engine_acme": PLUGIN},
    ):
        yield


def printed(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main(list(argv)) == status
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    return json.loads(printed(capsys, *argv, "--json"))


def test_list_shows_every_plugin_and_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in as_json(capsys, "plugins", "list")}
    assert rows["acme"] == {
        "name": "acme",
        "distribution": "engine-acme",
        "version": "1.2",
        "module": "engine_acme",
        "builtin": False,
        "sha256": "",
        "status": "on",
        "note": "",
    }
    assert rows["kernel"]["status"] == "on"
    assert rows["shy"]["status"] == "opt-in"


def test_list_shows_duplicate_names(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_dist("engine-other", "2.0", {"acme": "engine_other"}, {"engine_other": PLUGIN}):
        out = printed(capsys, "plugins", "list")
        rows = [line.split() for line in out.splitlines() if line.startswith("acme ")]
        assert [row[1] for row in rows] == ["clash", "clash"]
        assert (
            "two plugins are named 'acme'. Uninstall one, or exclude both with --plugins no:acme"
            in out
        )
        named = {
            r["status"]
            for r in as_json(capsys, "--plugins", "acme", "plugins", "list")
            if r["name"] == "acme"
        }
        assert named == {"clash"}
        blocked = as_json(capsys, "--plugins", "no:acme", "plugins", "list")
        assert {r["status"] for r in blocked if r["name"] == "acme"} == {"blocked"}


@pytest.mark.parametrize(("source", "status"), [("", "off"), (PLUGIN, "on")])
def test_list_marks_opt_in_routes(
    capsys: pytest.CaptureFixture[str], source: str, status: str
) -> None:
    routes = (
        source
        + "\nfrom core.api import hookimpl\n\n@hookimpl\ndef engine_routes():\n    return []\n"
    )
    with fake_dist("engine-web", "2.0", {"web": "engine_web"}, {"engine_web": routes}):
        rows = {r["name"]: r for r in as_json(capsys, "plugins", "list")}
        assert (rows["web"]["status"], rows["web"]["note"]) == (
            status,
            "its routes are off until named: --plugins +web",
        )
        named = {r["name"]: r for r in as_json(capsys, "--plugins", "+web", "plugins", "list")}
        assert (named["web"]["status"], named["web"]["note"]) == ("on", "")


def test_list_follows_the_selection(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        r["name"]: r["status"] for r in as_json(capsys, "--plugins", "no:acme", "plugins", "list")
    }
    assert (rows["acme"], rows["scripted"]) == ("blocked", "on")
    rows = {r["name"]: r["status"] for r in as_json(capsys, "--plugins", "none", "plugins", "list")}
    assert (rows["acme"], rows["scripted"], rows["kernel"]) == ("off", "off", "on")


def test_list_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "plugins", "list").splitlines()
    assert lines[0].split() == ["PLUGIN", "STATUS", "FROM", "MODULE"]
    assert any(
        line.split() == ["acme", "on", "third", "party,", "engine-acme", "1.2", "engine_acme"]
        for line in lines
    )


def test_list_imports_no_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_dist("engine-broken", "1", {"broken": "engine_broken"}, {"engine_broken": "1 / 0"}):
        assert "broken" in printed(capsys, "plugins", "list")


def test_show_lists_entries_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "plugins", "show", "acme")
    assert found["hooks"] == ["engine_options", "engine_scheduling_policies"]
    assert [(e["kind"], e["name"], e["when"]) for e in found["entries"]] == [
        ("scheduling_policies", "newest", {"device": "cpu"})
    ]
    assert found["options"] == [{"name": "newest_of", "default": 3, "help": "How many."}]
    text = printed(capsys, "plugins", "show", "acme")
    assert "acme: engine-acme 1.2, module engine_acme" in text
    assert "scheduling policy newest: the newest first" in text


def test_explain_takes_facts(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "plugins", "explain", "scheduling_policies", "--fact", "device=tpu")
    statuses = {row["name"]: row for row in found["candidates"]}
    assert statuses["newest"]["reason"] == "needs device cpu, here it is tpu"
    assert statuses["newest"]["plugin"]["distribution"] == "engine-acme"
    assert "needs device cpu, here it is tpu" in printed(
        capsys, "plugins", "explain", "scheduling_policies", "--fact", "device=tpu"
    )


def test_unknown_fact_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plugins", "explain", "attention_backends", "--fact", "head_sise=80"]) == 2
    error = capsys.readouterr().err
    assert "--fact: got head_sise; facts of attention_backends: alibi, " in error
    assert "did you mean 'head_size'?" in error
    assert main(["plugins", "explain", "tokenizers", "--fact", "device=cpu"]) == 2
    assert "tokenizers are chosen without facts" in capsys.readouterr().err


def test_explain_of_unknown_kind_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "explain", "attention_backend"]) == 2
    assert "did you mean 'attention_backends'?" in capsys.readouterr().err


def test_check_passes_a_good_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    with tmp_plugin(PLUGIN.replace(', when={"device": "cpu"}', ""), name="good") as path:
        results = as_json(capsys, "plugins", "check", path)
    assert all(result["passed"] for result in results)
    assert "key is pure" in [result["check"] for result in results]


def test_check_fails_a_bad_plugin_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with tmp_plugin(PLUGIN.replace("(-request.arrival_s,)", "None"), name="bad") as path:
        text = printed(capsys, "plugins", "check", path, status=1)
    assert "FAIL scheduling_policies:newest: key is a tuple of finite numbers" in text
    assert "return a tuple of numbers" in text
    assert "The contract: Keys are compared with each other" in text


def test_check_fails_an_entry_with_an_unknown_fact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "plugins", "check", "acme", status=1)
    assert "when has 'device'; expected a fact of scheduling_policies. Known: none" in text
    backend = PLUGIN.replace("scheduling_policies", "op_impls").replace('"device"', '"devise"')
    with tmp_plugin(backend, name="bad") as path:
        assert "did you mean 'device'? Known: device, " in printed(
            capsys, "plugins", "check", path, status=1
        )


def test_check_names_a_plugin_that_does_not_load(capsys: pytest.CaptureFixture[str]) -> None:
    with tmp_plugin("1 / 0", name="bad") as path:
        text = printed(capsys, "plugins", "check", path, status=1)
    assert "cannot be imported (process 'main'): ZeroDivisionError: division by zero" in text


def test_lock_output_is_accepted_by_plugins_lock(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lock = str(tmp_path / "engine-plugins.lock")
    assert "plugins with their files, digest" in printed(
        capsys, "plugins", "lock", "--output", lock
    )
    assert as_json(capsys, "--plugins-lock", lock, "plugins", "list")
    assert main(["--plugins-lock", lock, "--plugins", "no:acme", "plugins", "list"]) == 2
    assert (
        "it holds plugin 'acme' (engine-acme 1.2), which is not loaded" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda root: (root / "engine_acme.py").write_text("PLUGIN = 1"),
            "of engine-acme 1.2, engine_acme.py is edited",
        ),
        (
            lambda root: (root / "more" / "new.py").write_text(""),
            "of engine-acme 1.2, more/new.py is new",
        ),
        (
            lambda root: (root / "more" / "deep.py").unlink(),
            "of engine-acme 1.2, more/deep.py is missing",
        ),
    ],
)
def test_lock_rejects_edited_files_by_name(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    change: Callable[[Path], object],
    difference: str,
) -> None:
    lock = str(tmp_path / "lock")
    with fake_dist("engine-acme", "1.2", {"acme": "engine_acme"}, {"engine_acme": PLUGIN}) as root:
        (root / "more").mkdir()
        (root / "more" / "__init__.py").write_text("")
        (root / "more" / "deep.py").write_text("x = 1")
        (root / "engine_acme-1.2.dist-info" / "top_level.txt").write_text("engine_acme\nmore\n")
        printed(capsys, "--plugins", "acme", "plugins", "lock", "--output", lock)
        printed(capsys, "--plugins", "acme", "--plugins-lock", lock, "plugins", "list")
        change(root)
        assert main(["--plugins", "acme", "--plugins-lock", lock, "plugins", "list"]) == 2
        error = capsys.readouterr().err
        assert f"the plugins differ from the lock file {lock}: {difference}." in error


def test_list_imports_no_torch_and_is_fast() -> None:
    run = (
        "import sys; from core.cli.main import main; main(['plugins', 'list']); "
        "sys.exit('torch' in sys.modules)"
    )

    def work_s(code: str) -> float:
        """CPU time, as a machine busy with others makes everything late."""
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    rounds = [
        (work_s(run), work_s("import torch")) for _ in range(3)
    ]  # in turns: both meet the same machine
    assert min(listed / torch for listed, torch in rounds) < 0.3
