"""The frozen plugin plan: content, serialization and rejected differences."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from builtin_plugins.commands.plugins.status import write_lock
from core.errors import ConfigError, PluginError
from core.plugin import PluginPlan, load_plan, make_plan
from core.testing.plugins import fake_dist, tmp_plugin


def test_plan_serializes() -> None:
    plan = make_plan()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=PluginPlan) == plan


def test_digest_depends_on_file_content_only(tmp_path: Path) -> None:
    digests = []
    for folder, source in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(source)
        digests.append(make_plan(["none", str(file)]).digest)
    assert digests[0] == digests[1] != digests[2]


def test_version_mismatch_is_rejected_by_name() -> None:
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": ""}):
        plan = make_plan(["none", "acme"])
    with (
        fake_dist("engine-acme", "1.1", {"acme": "engine_acme"}, {"engine_acme": ""}),
        pytest.raises(PluginError) as error,
    ):
        load_plan(plan, "worker")
    assert str(error.value) == (
        "process 'worker' must load plugin 'acme' (engine-acme 1.0), module engine_acme, "
        "but here it is "
        "engine-acme 1.1, module engine_acme. All processes must run in one environment; restart "
        "the engine after "
        "installing plugins."
    )


def test_missing_plugin_is_rejected_by_name() -> None:
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": ""}):
        plan = make_plan(["none", "acme"])
    with pytest.raises(
        PluginError, match=r"plugin 'acme' \(engine-acme 1.0\).*but here it is not installed"
    ):
        load_plan(plan, "worker")


def test_changed_local_file_is_rejected() -> None:
    with tmp_plugin("x = 1") as path:
        plan = make_plan(["none", path])
        Path(path).write_text("x = 2")
        with pytest.raises(
            PluginError, match=r"plugin 'tmp_plugin' .* has changed since the plugins were selected"
        ):
            load_plan(plan, "worker")


def test_lock_file_accepts_the_same_set(tmp_path: Path) -> None:
    lock = tmp_path / "engine-plugins.lock"
    with tmp_plugin("x = 1") as path:
        lock.write_bytes(write_lock(make_plan([path])))
    with tmp_plugin("x = 1") as elsewhere:
        assert make_plan([elsewhere], str(lock)).plugins


def test_lock_file_rejects_another_set(tmp_path: Path) -> None:
    lock = tmp_path / "engine-plugins.lock"
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme", "gone": "engine_acme"}):
        lock.write_bytes(write_lock(make_plan(["none", "acme", "gone"])))
    with (
        fake_dist("engine-acme", "1.1", {"acme": "engine_acme", "new": "engine_acme"}),
        pytest.raises(ConfigError) as error,
    ):
        make_plan(["none", "acme", "new"], str(lock))
    assert str(error.value) == (
        f"the plugins differ from the lock file {lock}: plugin 'acme' has version '1.1', it says "
        "'1.0'; "
        "it holds plugin 'gone' (engine-acme 1.0), which is not loaded; plugin 'new' (engine-acme "
        "1.1) is not in it. "
        "Install and select what it holds, or write it anew with `engine plugins lock`."
    )


def test_unreadable_lock_file_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.lock"
    bad.write_text("{")
    for path in (bad, tmp_path / "nowhere.lock"):
        with pytest.raises(
            ConfigError,
            match=r"--plugins-lock .*cannot be read.*Write it with `engine plugins lock`",
        ):
            make_plan([], str(path))


def test_duplicate_plugin_names_are_rejected_with_a_hint() -> None:
    with (
        fake_dist("engine-one", "1.0", {"acme": "engine_one"}),
        fake_dist("engine-two", "2.0", {"acme": "engine_two"}),
    ):
        with pytest.raises(PluginError) as error:
            make_plan()
        assert "acme" not in [ref.name for ref in make_plan(["no:acme"]).plugins]
    assert str(error.value) == (
        "two plugins are called 'acme': engine_one of engine-one 1.0 and engine_two of engine-two "
        "2.0. "
        "Uninstall one of them, or leave both out with --plugins no:acme."
    )


def test_builtin_without_files_is_absent() -> None:
    with fake_dist("core", "0.1.0", {"gone": "builtin_plugins.gone.plugin"}):
        plan = make_plan()
        with pytest.raises(ConfigError) as error:
            make_plan(["gone"])
    assert plan.absent == ("gone",)
    assert str(error.value) == (
        "plugin 'gone' (core 0.1.0) belongs to the engine, but this installation lacks its files "
        "(builtin_plugins.gone.plugin)."
    )
