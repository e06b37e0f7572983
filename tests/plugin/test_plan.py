"""The frozen plan: what it holds, how it travels, and what is refused because it differs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from builtin_plugins.commands.plugins.lock import write_lock
from core.errors import ConfigError, PluginError
from core.plugin import PluginPlan, load_plan, make_plan
from core.testing.plugins import fake_dist, tmp_plugin


def test_a_plan_travels_as_plain_data() -> None:
    plan = make_plan()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=PluginPlan) == plan


def test_the_digest_follows_the_content_of_a_local_file_not_its_folder(tmp_path: Path) -> None:
    digests = []
    for folder, source in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2")):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(source)
        digests.append(make_plan(["none", str(file)]).digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_process_with_another_version_refuses_by_name() -> None:
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": ""}):
        plan = make_plan(["none", "acme"])
    with (
        fake_dist("engine-acme", "1.1", {"acme": "engine_acme"}, {"engine_acme": ""}),
        pytest.raises(PluginError) as error,
    ):
        load_plan(plan, "worker")
    assert str(error.value) == (
        "process 'worker' was told to load plugin 'acme' (engine-acme 1.0), module engine_acme, "
        "but here it is "
        "engine-acme 1.1, module engine_acme. All processes must run in one environment; restart "
        "the engine after "
        "installing plugins."
    )


def test_a_process_without_the_plugin_refuses_by_name() -> None:
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": ""}):
        plan = make_plan(["none", "acme"])
    with pytest.raises(
        PluginError, match=r"plugin 'acme' \(engine-acme 1.0\).*but here it is not installed"
    ):
        load_plan(plan, "worker")


def test_a_local_file_that_changed_after_the_plan_is_refused() -> None:
    with tmp_plugin("x = 1") as path:
        plan = make_plan(["none", path])
        Path(path).write_text("x = 2")
        with pytest.raises(
            PluginError, match=r"plugin 'tmp_plugin' .* has changed since the plugins were selected"
        ):
            load_plan(plan, "worker")


def test_a_lock_file_takes_the_same_set_on_another_machine(tmp_path: Path) -> None:
    lock = tmp_path / "engine-plugins.lock"
    with tmp_plugin("x = 1") as path:
        lock.write_bytes(write_lock(make_plan([path])))
    with tmp_plugin("x = 1") as elsewhere:
        assert make_plan([elsewhere], str(lock)).plugins


def test_a_lock_file_refuses_any_other_set_and_names_the_difference(tmp_path: Path) -> None:
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


def test_a_lock_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.lock"
    bad.write_text("{")
    for path in (bad, tmp_path / "nowhere.lock"):
        with pytest.raises(
            ConfigError,
            match=r"--plugins-lock .*cannot be read.*Write it with `engine plugins lock`",
        ):
            make_plan([], str(path))


def test_two_plugins_with_one_name_are_refused_with_the_way_out() -> None:
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


def test_a_builtin_without_its_files_is_absent_and_asking_for_it_says_so() -> None:
    with fake_dist("core", "0.1.0", {"gone": "builtin_plugins.gone.plugin"}):
        plan = make_plan()
        with pytest.raises(ConfigError) as error:
            make_plan(["gone"])
    assert plan.absent == ("gone",)
    assert str(error.value) == (
        "plugin 'gone' (core 0.1.0) belongs to the engine, but this installation lacks its files "
        "(builtin_plugins.gone.plugin)."
    )
