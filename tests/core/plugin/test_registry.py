"""Registry: entry selection, ranking, combinations and decisions."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import pytest
from importlib_metadata import entry_points

from builtin_plugins.commands.plugins.status import explain
from core.config import EngineConfig
from core.errors import ConfigError, PluginError
from core.plugin import KINDS, Registry, load_plan, make_plan
from core.plugin.discovery import GROUP
from core.plugin.entry import Entry
from core.plugin.facts import why_not
from core.testing.plugins import fake_dist, hook_calls, load_plugins, tmp_plugin

API = "from core.api import Entry, Option, hookimpl\nfrom core.api.models import ModelSource\n"


@contextmanager
def registry_of(source: str) -> Iterator[Registry]:
    with tmp_plugin(API + source, name="mine") as path:
        yield load_plugins(path)


BACKENDS = """
@hookimpl
def engine_attention_backends():
    return [
        Entry("slow", object, "fits everything"),
        Entry("equal", object, "fits everything too"),
        Entry(
            "fast",
            object,
            "for one device",
            priority=10,
            when={"device": "cuda", "head_size": range(8, 257)},
        ),
        Entry("missing", object, "lacks something", priority=20, requires=("no-such-thing",)),
    ]
"""


def test_auto_selects_the_highest_matching_priority() -> None:
    with registry_of(BACKENDS) as registry:
        assert (
            registry.choose(
                "attention_backends", facts={"device": "cuda", "head_size": 64}
            ).entry.name
            == "fast"
        )
        assert (
            registry.choose(
                "attention_backends", facts={"device": "cuda", "head_size": 512}
            ).entry.name
            == "equal"
        )


def test_priority_ties_are_ordered_by_name() -> None:
    with registry_of(BACKENDS) as registry:
        assert registry.choose("attention_backends", facts={"device": "cpu"}).entry.name == "equal"


def test_named_entry_overrides_priority() -> None:
    with registry_of(BACKENDS) as registry:
        assert registry.choose("attention_backends", "slow").entry.name == "slow"


def test_unknown_entry_lists_the_known_ones() -> None:
    with registry_of(BACKENDS) as registry, pytest.raises(ConfigError) as error:
        registry.choose("attention_backends", "fats")
    assert str(error.value) == (
        "unknown attention backend 'fats'; available: equal, fast, missing, slow; did you mean "
        "'fast'?"
    )


def test_named_entry_that_does_not_match_is_rejected() -> None:
    with registry_of(BACKENDS) as registry, pytest.raises(ConfigError) as error:
        registry.choose("attention_backends", "fast", {"device": "cpu", "head_size": 64})
    assert str(error.value).startswith(
        "no attention backend can be used here: 'fast' of plugin 'mine' (local file "
    )
    assert str(error.value).endswith(") needs device cuda, here it is cpu. What fits: equal, slow")


def test_kind_without_entries_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^no platform is loaded; available: none"):
        load_plugins().choose("platforms")


def test_absent_plugins_are_named_when_an_entry_is_missing() -> None:
    with fake_dist("core", "0.1.0", {"policy_gone": "builtin_plugins.gone"}):
        registry = load_plan(make_plan())
    with pytest.raises(ConfigError, match=r"Builtins absent from this installation: policy_gone"):
        registry.choose("scheduling_policies", "gone")


@pytest.mark.parametrize(
    ("when", "facts", "reason"),
    [
        ({}, {}, None),
        ({"device": "cpu"}, {"device": "cpu"}, None),
        ({"device": "cpu"}, {}, "needs device cpu, which is not known here"),
        ({"dtype": {"float16", "bfloat16"}}, {"dtype": "bfloat16"}, None),
        ({"dtype": {"b", "a"}}, {"dtype": "c"}, "needs dtype a or b, here it is c"),
        ({"head_size": range(8, 257)}, {"head_size": 256}, None),
        (
            {"head_size": range(8, 257)},
            {"head_size": 257},
            "needs head_size 8 to 256, here it is 257",
        ),
        (
            {"head_size": range(8, 65, 8)},
            {"head_size": 12},
            "needs head_size 8 to 64 by 8, here it is 12",
        ),
        ({"isa": "avx512"}, {"isa": {"avx2", "avx512"}}, None),
        (
            {"isa": ("amx", "avx512")},
            {"isa": frozenset({"avx2"})},
            "needs isa amx or avx512, here it is avx2",
        ),
    ],
)
def test_when_matches_facts(
    when: dict[str, Any], facts: dict[str, Any], reason: str | None
) -> None:
    assert why_not(Entry("x", object, "x", when=when), facts) == reason


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ("pluggy", None),
        ("pluggy>=99", "needs pluggy>=99, but"),
        (
            "no-such-thing",
            "needs no-such-thing, which is not installed (pip install 'no-such-thing')",
        ),
        (
            "not a requirement",
            "requires 'not a requirement', which is no requirement that can be read",
        ),
    ],
)
def test_requires_checks_installed_packages(requires: str, reason: str | None) -> None:
    found = why_not(Entry("x", object, "x", requires=(requires,)), {})
    assert found == reason if reason is None else str(found).startswith(reason)


def test_explain_gives_a_reason_per_candidate() -> None:
    with registry_of(BACKENDS) as registry:
        verdicts = explain(registry, "attention_backends", {"device": "cpu"})
    assert [(v.name, v.chosen, v.reason) for v in verdicts] == [
        (
            "missing",
            False,
            "needs no-such-thing, which is not installed (pip install 'no-such-thing')",
        ),
        ("fast", False, "needs device cuda, here it is cpu"),
        ("equal", True, "fits, with the highest priority of those that fit"),
        ("slow", False, "fits, but 'equal' has the same priority and is first by name"),
    ]


ROUTES = API + "@hookimpl\ndef engine_routes():\n    return [Entry('acme', object, 'a route')]"


def test_third_party_routes_are_opt_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "core")
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": ROUTES}):
        silent = load_plan(make_plan())
        named = load_plan(make_plan(["+acme"]))
    assert "acme" not in [registered.entry.name for registered in silent.entries("routes")]
    assert "acme" in [registered.entry.name for registered in named.entries("routes")]
    off = (
        "route group 'acme' of plugin 'acme' (engine-acme 1.0) is off until the plugin is named: "
        "--plugins +acme"
    )
    assert off in caplog.messages
    assert (
        explain(silent, "routes", {})[-1].reason == "off until the plugin is named: --plugins +acme"
    )
    with pytest.raises(
        ConfigError, match=r"'acme' of plugin 'acme' .* is off until named \(--plugins \+acme\)"
    ):
        silent.choose("routes", "acme")


COMBINATION = """
@hookimpl
def engine_metric_sinks():
    return [
        Entry("needy", object, "x", needs=frozenset({"power"})),
        Entry("giver", object, "x", gives=frozenset({"power"})),
        Entry("loner", object, "x", conflicts=frozenset({"metric_sinks:needy"})),
        Entry("careful", object, "x", conflicts=frozenset({"power"})),
    ]
"""


def combination(*names: str) -> None:
    with registry_of(COMBINATION) as registry:
        registry.check_combination(registry.choose("metric_sinks", name) for name in names)


def test_compatible_capabilities_are_allowed() -> None:
    combination("needy", "giver")
    combination("loner", "giver")


def test_missing_capability_names_its_providers() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'needy' of .* needs 'power', which nothing chosen gives; choose metric sink "
        r"'giver'",
    ):
        combination("needy")


def test_conflict_names_both_entries() -> None:
    with pytest.raises(
        ConfigError, match=r"'loner' of .* cannot be combined with metric sink 'needy'"
    ):
        combination("loner", "needy", "giver")
    with pytest.raises(
        ConfigError,
        match=r"'careful' of .* cannot be combined with metric sink 'giver' .*\(power\)",
    ):
        combination("careful", "giver")


FIND = """
@hookimpl{order}
def engine_find_model(model):
    calls.append("{name}")
    return ModelSource(model, "{name}", None) if model == "{name}" or model == "both" else None
"""


def test_find_model_uses_the_first_answer() -> None:
    calls: list[str] = []
    plugins = {"a": "(trylast=True)", "b": "", "c": "", "d": "(tryfirst=True)"}
    with ExitStack() as stack:
        paths = [
            stack.enter_context(
                tmp_plugin(API + "calls = []" + FIND.format(name=name, order=order), name=name)
            )
            for name, order in plugins.items()
        ]
        registry = load_plugins(*paths)
        for ref in registry.plan.plugins[1:]:
            vars(sys.modules[f"engine_local_{ref.name}"])["calls"] = calls
        config = EngineConfig()
        assert registry.find_model("unknown", config) is None
        assert calls == ["d", "b", "c", "a"]
        calls.clear()
        source = registry.find_model("both", config)
    assert source is not None
    assert source.architecture == "d"
    assert calls == ["d"]


def test_model_name_can_be_an_alias() -> None:
    alias = (
        f"{API}@hookimpl(tryfirst=True)\n"
        "def engine_find_model(model):\n    return 'b' if model == 'default' else None"
    )
    with (
        tmp_plugin(alias, name="a") as first,
        tmp_plugin(API + "calls = []" + FIND.format(name="b", order="")) as other,
    ):
        source = load_plugins(first, other).find_model("default", EngineConfig())
    assert source is not None
    assert (source.name, source.architecture) == ("b", "b")


def resolver(value: int) -> str:
    return f"{API}@hookimpl\ndef engine_resolve(decisions):\n    return {{'seqs': {value}}}"


def test_a_changed_decision_is_logged_with_the_plugins_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "core")
    with fake_dist("engine-acme", "1.0", {"acme": "engine_acme"}, {"engine_acme": resolver(3)}):
        assert load_plugins("acme").resolve({"seqs": 8}) == {"seqs": 3}
    assert caplog.messages[-1] == "plugin 'acme' (engine-acme 1.0) changes seqs from 8 to 3"


def test_conflicting_decisions_are_rejected() -> None:
    with (
        fake_dist("engine-one", "1.0", {"one": "engine_one"}, {"engine_one": resolver(3)}),
        fake_dist("engine-two", "2.0", {"two": "engine_two"}, {"engine_two": resolver(4)}),
        pytest.raises(ConfigError) as error,
    ):
        load_plugins("one", "two").resolve({"seqs": 8})
    assert str(error.value) == (
        "plugin 'one' (engine-one 1.0) wants seqs to be 3, plugin 'two' (engine-two 2.0) wants 4. "
        "Leave one of them out, for example with --plugins no:two."
    )


def test_a_plugin_can_add_hooks_that_others_implement() -> None:
    added = """
    import types
    from core.api import hookimpl, hookspec

    @hookspec
    def engine_acme_greetings(name): ...

    @hookimpl
    def engine_add_hooks():
        return [types.SimpleNamespace(engine_acme_greetings=engine_acme_greetings)]
    """
    user = API + "@hookimpl\ndef engine_acme_greetings(name):\n    return 'hello ' + name"
    with tmp_plugin(added, name="adds") as adds, tmp_plugin(user, name="uses") as uses:
        registry = load_plugins(adds, uses)
        assert [
            answer for _, answer in registry.call_hook("engine_acme_greetings", name="you")
        ] == ["hello you"]


def test_invalid_added_hook_is_rejected() -> None:
    added = """
    import types
    from core.api import hookimpl, hookspec

    @hookspec
    def acme_greetings(name): ...

    @hookimpl
    def engine_add_hooks():
        return [types.SimpleNamespace(acme_greetings=acme_greetings)]
    """
    refusal = r"'adds' .* adds a hook 'acme_greetings'; call it engine_acme_greetings\."
    with tmp_plugin(added, name="adds") as adds, pytest.raises(PluginError, match=refusal):
        load_plugins(adds)


def test_options_come_with_their_plugin() -> None:
    with registry_of(
        "@hookimpl\ndef engine_options():\n    return [Option('mine_x', int, 1, 'help')]"
    ) as registry:
        assert [(name, option.name) for name, option in registry.options()] == [("mine", "mine_x")]


def test_choosing_and_loading_call_no_hook() -> None:
    with registry_of(BACKENDS) as registry, hook_calls() as calls:
        registry.load(registry.choose("attention_backends", "slow"))
        assert calls == []
        registry.process_started("main")
        assert calls == ["engine_process_start"]


def test_kinds_hooks_and_contracts_agree() -> None:
    from core.plugin import hookspecs
    from core.testing.conformance import contract_of

    hooks = {name.removeprefix("engine_") for name in vars(hookspecs) if name.startswith("engine_")}
    assert set(KINDS) <= hooks
    for kind in KINDS.values():
        contract = contract_of(kind.name)
        assert kind.name == "op_impls" or contract.__name__ == kind.contract.rpartition(".")[2]
        assert getattr(hookspecs, kind.hook).__doc__


@contextmanager
def idle_plugins(number: int) -> Iterator[list[str]]:
    """Install this many more plugins; yield their modules."""
    modules = [f"engine_idle{i}" for i in range(number)]
    with ExitStack() as stack:
        for i, module in enumerate(modules):
            source = (
                f"{API}@hookimpl\n"
                f"def engine_models():\n    return [Entry('Idle{i}', 'nowhere:X', 'idle')]"
            )
            plugins = {f"idle{i}": module}
            stack.enter_context(fake_dist(f"engine-idle{i}", "1.0", plugins, {module: source}))
        yield modules


def seconds(number: int, work: Callable[[list[str]], object]) -> float:
    """Processor time of work on the modules of this many more installed idle plugins."""
    best = float("inf")
    with idle_plugins(number) as modules:
        for _ in range(5):
            for module in modules:
                sys.modules.pop(module, None)
            started = time.process_time()
            work(modules)
            best = min(best, time.process_time() - started)
    return best


def read_and_import(modules: list[str]) -> None:
    """Do what Python needs for any plugin system: read the metadata and import the modules."""
    assert set(modules) <= {point.module for point in entry_points(group=GROUP)}
    for module in modules:
        import_module(module)


def load(_: list[str]) -> None:
    load_plan(make_plan())


def test_fifty_idle_plugins_add_less_than_50_ms_or_three_times_their_imports() -> None:
    seconds(1, load)
    with_plugins_s = seconds(50, load) - seconds(0, load)
    imports_s = seconds(50, read_and_import) - seconds(0, read_and_import)
    assert with_plugins_s <= max(0.050, 3 * imports_s)
