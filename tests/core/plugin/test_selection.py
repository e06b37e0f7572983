"""The `--plugins` grammar and the resulting selection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from core.plugin import make_plan
from core.plugin.selection import parse_selection
from core.testing.plugins import fake_dist, tmp_plugin

EMPTY = {"engine_acme": "", "engine_other": "", "engine_shy": ""}


@pytest.fixture(autouse=True)
def third_parties() -> Iterator[None]:
    plugins = {"acme": "engine_acme", "other": "engine_other", "shy": "engine_shy [opt_in]"}
    with fake_dist("engine-acme", "1.2", plugins, EMPTY):
        yield


def third(*selection: str) -> list[str]:
    return [ref.name for ref in make_plan(selection).plugins if not ref.builtin]


def builtins(*selection: str) -> list[str]:
    return [ref.name for ref in make_plan(selection).plugins if ref.builtin]


def test_default_selection_is_builtins_and_installed_plugins() -> None:
    assert third() == ["acme", "other"]
    assert "scripted" in builtins()


def test_name_selects_builtins_and_the_named_plugins() -> None:
    assert third("acme") == ["acme"]
    assert builtins("acme") == builtins()


def test_plus_adds_an_opt_in_plugin() -> None:
    assert third("+shy") == ["acme", "other", "shy"]


def test_an_opt_in_plugin_loads_when_named() -> None:
    assert third("shy") == ["shy"]


def test_no_blocks_a_third_party_and_a_builtin() -> None:
    assert third("no:acme") == ["other"]
    assert "scripted" not in builtins("no:scripted")


def test_none_means_not_even_builtins() -> None:
    assert [ref.name for ref in make_plan(["none"]).plugins] == ["kernel"]


def test_builtins_named_after_none_come_back() -> None:
    assert builtins("none", "scripted", "chat_template") == ["kernel", "chat_template", "scripted"]
    assert builtins("none,scripted,chat_template") == ["kernel", "chat_template", "scripted"]


@pytest.mark.parametrize("written", ["acme>=1.2", "acme >=1.0,<2", "acme==1.2", "acme~=1.1"])
def test_matching_version_is_accepted(written: str) -> None:
    assert third(written) == ["acme"]


def test_wrong_version_is_rejected() -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(["acme>=2"])
    assert str(error.value) == (
        "--plugins 'acme>=2': plugin 'acme' (engine-acme 1.2) is installed. "
        "Install a version that fits, or name another."
    )


def test_unknown_plugin_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(["acmee"])
    assert str(error.value) == (
        "--plugins 'acmee': unknown plugin 'acmee'; installed besides the builtins: acme, other, "
        "shy; "
        "did you mean 'acme'?"
    )


def test_unknown_plugin_cannot_be_blocked() -> None:
    with pytest.raises(
        ConfigError,
        match=r"--plugins 'no:scriptd': unknown plugin 'scriptd'.*did you mean 'scripted'",
    ):
        make_plan(["no:scriptd"])


def test_naming_and_blocking_a_plugin_is_rejected() -> None:
    with pytest.raises(ConfigError, match="both names and blocks 'acme'"):
        make_plan(["acme", "no:acme"])


def test_kernel_plugin_cannot_be_blocked() -> None:
    with pytest.raises(ConfigError, match="the engine cannot run without it"):
        make_plan(["no:kernel"])


def test_invalid_selector_shows_the_grammar() -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(["acme>>1"])
    assert str(error.value) == (
        "--plugins 'acme>>1' is not understood; write NAME, 'NAME>=1.2', +NAME, no:NAME, none, "
        "./file.py or pkg.module."
    )


def test_local_file_and_module_need_no_packaging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    package.joinpath("__init__.py").write_text("raise RuntimeError('discovery imports nothing')")
    package.joinpath("inner.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with tmp_plugin("", name="mine") as path:
        plan = make_plan(["none", path, "some_package.inner"])
    assert [(ref.name, ref.is_file, len(ref.sha256)) for ref in plan.plugins[1:]] == [
        ("mine", True, 64),
        ("some_package.inner", False, 64),
    ]


def test_module_of_an_installed_plugin_names_it() -> None:
    assert third("+engine_acme") == ["acme", "other"]
    assert third("engine_acme") == ["acme"]
    assert third("+engine_shy") == ["acme", "other", "shy"]


def test_missing_local_file_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"--plugins ./nowhere.py: there is no such file"):
        make_plan(["./nowhere.py"])
    with pytest.raises(ConfigError, match=r"--plugins no.where: there is no such module"):
        make_plan(["no.where"])


def test_folder_is_rejected_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="pip install -e"):
        make_plan(["./folder/"])


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "none")


@given(st.lists(st.tuples(st.sampled_from(["", "+", "no:"]), NAMES)), st.booleans())
def test_selectors_may_be_comma_separated_or_repeated(
    words: list[tuple[str, str]], nothing: bool
) -> None:
    written = [sign + name for sign, name in words] + ["none"] * nothing
    read = parse_selection(written)
    assert read == parse_selection([",".join(written)])
    assert read.nothing == nothing
    assert [wish.name for wish in read.exact] == [name for sign, name in words if not sign]
    assert [wish.name for wish in read.added] == [name for sign, name in words if sign == "+"]
    assert [wish.name for wish in read.blocked] == [name for sign, name in words if sign == "no:"]
