"""Every plugin error and its exact message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from core.config import EngineConfig
from core.errors import InvalidRequest, PluginError
from core.logs import RateLimitedLogger
from core.plugin import Registry, load_plan, make_plan
from core.testing.plugins import fake_dist, load_plugins, tmp_plugin

API = "from core.api import Entry, Option, hookimpl\n"


@contextmanager
def installed(source: str) -> Iterator[None]:
    """An installed plugin `acme` with this source."""
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": source}):
        yield


def refusal(source: str) -> PluginError:
    """The error with which a plugin of this source stops start-up."""
    with installed(source), pytest.raises(PluginError) as error:
        load_plugins("acme")
    return error.value


def test_import_error_stops_startup_with_a_disable_hint() -> None:
    error = refusal("import missing_module")
    assert str(error) == (
        "plugin 'acme' (engine-acme 1.0) cannot be imported (process 'main'): ModuleNotFoundError: "
        "No module named 'missing_module'. Leave it out with --plugins no:acme."
    )
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_plugin_that_exits_on_import_is_named() -> None:
    assert (
        "plugin 'acme' (engine-acme 1.0) cannot be imported (process 'main'): SystemExit: 3."
        in str(refusal("import sys; sys.exit(3)"))
    )


def test_disable_hint_works() -> None:
    with installed("import missing_module"):
        assert load_plan(make_plan(["no:acme"])).entries("executors")


def test_wrong_hook_argument_is_rejected() -> None:
    assert str(refusal(API + "@hookimpl\ndef engine_find_model(modle, config): ...")) == (
        "plugin 'acme' (engine-acme 1.0): hook engine_find_model has no argument 'modle'; it has "
        "model, config; "
        "did you mean 'model'? Leave it out with --plugins no:acme."
    )


def test_unused_hook_arguments_may_be_omitted() -> None:
    with installed(API + "@hookimpl\ndef engine_process_start(): ..."):
        load_plugins("acme").process_started("main")


def test_hooks_of_absent_plugins_may_be_implemented() -> None:
    source = API + "@hookimpl(optionalhook=True)\ndef engine_find_acme(): ..."
    names = {"acme": "engine_acme", "other": "engine_other"}
    with fake_dist("engine-acme", "1.0", names, dict.fromkeys(names.values(), source)):
        load_plugins("acme", "other")


def test_misspelt_hook_is_rejected() -> None:
    assert str(refusal(API + "@hookimpl\ndef engine_model():\n    return []")) == (
        "plugin 'acme' (engine-acme 1.0) has a hook 'engine_model' that does not exist; did you "
        "mean 'engine_models'? "
        "Leave it out with --plugins no:acme."
    )


def test_misspelt_undecorated_hook_is_rejected() -> None:
    assert "has a hook 'engine_modles' that does not exist" in str(
        refusal("def engine_modles():\n    return []")
    )


def test_undecorated_hook_is_rejected() -> None:
    assert str(refusal("def engine_models():\n    return []")) == (
        "plugin 'acme' (engine-acme 1.0) defines engine_models without @hookimpl, so it would "
        "never be called. "
        "Decorate it (`from core.api import hookimpl`). Leave it out with --plugins no:acme."
    )


def test_hook_wrapper_is_rejected() -> None:
    source = API + "@hookimpl(wrapper=True)\ndef engine_models():\n    return (yield)"
    assert "marks engine_models as a wrapper, but hooks are called one plugin at a time" in str(
        refusal(source)
    )


def test_raising_hook_is_named() -> None:
    assert str(refusal(API + "@hookimpl\ndef engine_models():\n    return 1 / 0")) == (
        "plugin 'acme' (engine-acme 1.0) failed in hook engine_models (process 'main'): "
        "ZeroDivisionError: "
        "division by zero. Leave it out with --plugins no:acme."
    )


def test_hook_with_wrong_return_type_is_rejected() -> None:
    assert str(refusal(API + "@hookimpl\ndef engine_models():\n    return {'a': 1}")) == (
        "plugin 'acme' (engine-acme 1.0) must return a list of Entry objects from its hook "
        "engine_models, not {'a': 1}. "
        "Leave it out with --plugins no:acme."
    )


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ("engine_find_model(model)", "a ModelSource, another name or None"),
        ("engine_resolve(decisions)", "a mapping or None"),
        ("engine_scheduler_extensions(config)", "a list"),
        ("engine_runner_extensions(config)", "a list"),
    ],
)
def test_lifecycle_hook_with_wrong_return_type_is_rejected(hook: str, expected: str) -> None:
    calls = {
        "engine_find_model": lambda registry: registry.find_model("x", EngineConfig()),
        "engine_resolve": lambda registry: registry.resolve({}),
        "engine_scheduler_extensions": lambda registry: registry.scheduler_extensions(
            EngineConfig()
        ),
        "engine_runner_extensions": lambda registry: registry.runner_extensions(EngineConfig()),
    }
    with (
        installed(f"{API}@hookimpl\ndef {hook}:\n    return 7"),
        pytest.raises(PluginError) as error,
    ):
        calls[hook.partition("(")[0]](load_plugins("acme"))
    assert str(error.value) == (
        f"plugin 'acme' (engine-acme 1.0) must return {expected} from its hook "
        f"{hook.partition('(')[0]}, not 7. "
        "Leave it out with --plugins no:acme."
    )


def test_entry_for_a_newer_api_is_rejected() -> None:
    assert str(
        refusal(
            API + "@hookimpl\ndef engine_models():\n    return [Entry('Acme', 'a:b', 'x', api=2)]"
        )
    ) == (
        "model architecture 'Acme' of plugin 'acme' (engine-acme 1.0) is written for version 2 of "
        "the contracts, "
        "this engine has 1. Upgrade the engine. Leave it out with --plugins no:acme."
    )


def test_entry_for_a_much_older_api_is_rejected() -> None:
    assert str(
        refusal(
            API + "@hookimpl\ndef engine_models():\n    return [Entry('Acme', 'a:b', 'x', api=-1)]"
        )
    ) == (
        "model architecture 'Acme' of plugin 'acme' (engine-acme 1.0) is written for version -1 of "
        "the contracts, "
        "this engine has 1 and still takes 0. Upgrade the plugin. Leave it out with --plugins "
        "no:acme."
    )


def test_entry_one_api_version_older_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with installed(
        API + "@hookimpl\ndef engine_models():\n    return [Entry('Acme', 'a:b', 'x', api=0)]"
    ):
        assert load_plugins("acme").entries("models")
    assert caplog.messages == [
        "model architecture 'Acme' of plugin 'acme' (engine-acme 1.0) is written for version 0 of "
        "the contracts and "
        "will be refused by the next engine"
    ]


def test_duplicate_entries_are_rejected() -> None:
    source = (
        API + "@hookimpl\ndef engine_models():\n    return [Entry('ScriptedModel', 'a:b', 'x')]"
    )
    with installed(source), pytest.raises(PluginError) as error:
        load_plugins("acme", "scripted")
    assert str(error.value) == (
        "model architecture 'ScriptedModel' of plugin 'acme' (engine-acme 1.0) and model "
        "architecture 'ScriptedModel' "
        "of plugin 'scripted' (core 0.1.0) have one name. Leave one of the plugins out, for "
        "example with "
        "--plugins no:acme."
    )


@pytest.mark.parametrize("name", ["acme", "zeta"])  # loaded before and after the other plugin
def test_entry_replaces_the_one_it_names(name: str) -> None:
    source = API + (
        "@hookimpl\ndef engine_models():\n"
        "    return [Entry('ScriptedModel', 'a:b', 'x', replaces='scripted')]"
    )
    with fake_dist("engine-acme", "1.0", {name: "engine_acme"}, {"engine_acme": source}):
        registry = load_plugins(name, "scripted")
        assert registry.choose("models", "ScriptedModel").plugin.name == name


@contextmanager
def with_entry(target: str, extra: str = "") -> Iterator[Registry]:
    source = (
        f"{API}@hookimpl\ndef engine_models():\n    return [Entry('Acme', '{target}', 'x'{extra})]"
    )
    with installed(source):
        yield load_plugins("acme")


def test_entry_with_missing_target_is_named() -> None:
    with with_entry("engine_acme:Nothing") as registry, pytest.raises(PluginError) as error:
        registry.load(registry.choose("models", "Acme"))
    assert str(error.value) == (
        "plugin 'acme' (engine-acme 1.0) failed while entry models:Acme was imported from "
        "engine_acme:Nothing "
        "(process 'main'): AttributeError: module 'engine_acme' has no attribute 'Nothing'. "
        "Leave it out with --plugins no:acme."
    )


def test_missing_requirement_names_the_install_command() -> None:
    with (
        with_entry("engine_acme:X", ", requires=('no-such-thing>=2',)") as registry,
        pytest.raises(PluginError) as error,
    ):
        registry.load(registry.entries("models")[0])
    assert str(error.value) == (
        "model architecture 'Acme' of plugin 'acme' (engine-acme 1.0) needs no-such-thing>=2, "
        "which is not installed "
        "(pip install 'no-such-thing>=2')."
    )


def test_plugin_error_names_plugin_and_request() -> None:
    with with_entry("engine_acme:X") as registry:
        registered = registry.choose("models", "Acme")
        with pytest.raises(PluginError) as error, registry.blame(registered, "cmpl-7"):
            raise KeyError("forbid")
    assert str(error.value) == (
        "plugin 'acme' (engine-acme 1.0) failed in entry models:Acme in request 'cmpl-7' (process "
        "'main'): "
        "KeyError: 'forbid'. Leave it out with --plugins no:acme."
    )
    assert isinstance(error.value.__cause__, KeyError)


def test_client_error_names_the_plugin_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with with_entry("engine_acme:X") as registry:
        blame = registry.blame(registry.choose("models", "Acme"))
        messages = [blame.client_message(KeyError(f"/srv/secret {i}"), "cmpl-7") for i in range(3)]
        assert (
            blame.client_message(InvalidRequest("extra_args", "no."), "cmpl-7") == "extra_args: no."
        )
    assert messages == ["plugin 'acme' failed in request 'cmpl-7'; see the engine log."] * 3
    (record,) = caplog.records
    assert (
        "failed in entry models:Acme (process 'main'): KeyError: '/srv/secret 0'." in record.message
    )
    assert record.message.endswith("Request: 'cmpl-7'.")
    assert record.exc_info is not None


def test_repeated_failures_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    seldom = RateLimitedLogger(logging.getLogger("core.test"), lambda: now[0])
    for second in (0, 1, 59, 60, 61):
        now[0] = float(second)
        seldom.error("acme", f"at {second}", KeyError())
    seldom.error("other", "another", KeyError())
    assert caplog.messages == ["at 0", "at 60 (2 more since the last line about it)", "another"]


def test_blame_passes_engine_errors_through() -> None:
    with with_entry("engine_acme:X") as registry:
        registered = registry.choose("models", "Acme")

        @registry.blame(registered)
        def refuse() -> None:
            raise InvalidRequest("extra_args", "no.")

        with pytest.raises(InvalidRequest, match=r"^extra_args: no\.$"):
            refuse()


def test_local_plugin_is_named_by_file() -> None:
    with tmp_plugin("1 / 0", name="mine") as path, pytest.raises(PluginError) as error:
        load_plugins(path)
    assert str(error.value) == (
        f"plugin 'mine' (local file {path}) cannot be imported (process 'main'): "
        "ZeroDivisionError: division by zero. "
        "Correct it, or leave it out of --plugins."
    )


def test_third_parties_are_logged_once_with_version(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "core")
    with installed(""):
        load_plugins("acme", "scripted")
    assert caplog.messages == ["third-party plugin 'acme' (engine-acme 1.0) is on"]


def test_third_parties_are_logged_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "core")
    names = {f"idle_{i}": f"engine_idle_{i}" for i in range(3)}
    with fake_dist("engine-idle", "1.0", names, dict.fromkeys(names.values(), "")):
        load_plugins(*names)
    assert caplog.messages == [
        "third-party plugin 'idle_0' (engine-idle 1.0), plugin 'idle_1' (engine-idle 1.0), "
        "plugin 'idle_2' (engine-idle 1.0) are on"
    ]
