"""Configuration from keywords, files and environment, with the origin of each value."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config import EngineConfig
from core.config.build import (
    Provenance,
    assemble,
    config_from_kwargs,
    layer_from_environment,
    layer_from_file,
    layer_from_keywords,
    plugins_from_kwargs,
)
from core.config.fields import FieldTable, Option
from core.config.files import ConfigFile, read_config_file
from core.config.sections import CacheConfig
from core.errors import ConfigError


def plugin(name: str, *options: Option) -> list[tuple[str, Option]]:
    return [(name, option) for option in options]


PORT = plugin("web", Option("port", int, 8000, "Port."))
LORA = plugin(
    "planned",
    Option("enable_lora", bool, False, "LoRA", refuse="LoRA adapters: not part of this version."),
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENGINE_CONFIG", "ENGINE_PLUGINS", "ENGINE_LOG_LEVEL", "ENGINE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def from_file(path: Path, text: str, options: Any = ()) -> tuple[EngineConfig, Provenance]:
    path.write_text(text)
    table = FieldTable(options)
    return assemble(table, [layer_from_file(table, read_config_file(str(path)))])


class TestKeywords:
    def test_flat_names_are_assigned_to_sections(self) -> None:
        config = config_from_kwargs(
            {
                "model": "m",
                "dtype": "float",
                "max_model_len": 64,
                "num_gpu_blocks_override": 4,
                "port": 1,
            },
            PORT,
        )
        assert (config.model.model, config.model.dtype, config.model.max_model_len) == (
            "m",
            "float",
            64,
        )
        assert config.cache.num_gpu_blocks_override == 4
        assert config.options == {"port": 1}

    def test_none_means_the_default(self) -> None:
        assert config_from_kwargs(
            {"block_size": None, "seed": None, "port": None}, PORT
        ) == config_from_kwargs({}, PORT)

    def test_human_sizes_are_accepted_as_keywords(self) -> None:
        assert (
            config_from_kwargs({"kv_cache_memory_bytes": "1M"}).cache.kv_cache_memory_bytes
            == 1024**2
        )

    def test_unknown_keyword_suggests_a_similar_name(self) -> None:
        with pytest.raises(
            ConfigError, match=r"unknown option 'max_modle_len'; did you mean 'max_model_len'\?"
        ):
            config_from_kwargs({"max_modle_len": 1})

    def test_wrong_type_names_keyword_value_and_expectation(self) -> None:
        with pytest.raises(ConfigError, match=r"max_num_seqs= 'many': expected an integer\."):
            config_from_kwargs({"max_num_seqs": "many"})

    def test_wrong_value_names_flag_limit_and_origin(self) -> None:
        with pytest.raises(ConfigError) as caught:
            config_from_kwargs({"max_num_seqs": 0})
        assert str(caught.value) == (
            "--max-num-seqs 0 is too small; use at least 1. (--max-num-seqs is set by keyword "
            "max_num_seqs)"
        )

    def test_plugins_are_known_before_their_options(self) -> None:
        assert plugins_from_kwargs({"plugins": ["none", "web"], "port": 1}) == (
            ["none", "web"],
            None,
        )
        assert plugins_from_kwargs({"plugins": "none,web>=1,<2"}) == (["none,web>=1,<2"], None)

    def test_environment_selects_plugins_where_no_keyword_does(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ENGINE_PLUGINS", "none,web")
        assert plugins_from_kwargs({}) == (["none,web"], None)
        assert plugins_from_kwargs({"plugins": ["other"]}) == (["other"], None)


class TestRefusedOptions:
    def test_planned_option_is_rejected_with_the_missing_feature(self) -> None:
        with pytest.raises(ConfigError) as caught:
            config_from_kwargs({"enable_lora": True}, LORA)
        assert (
            str(caught.value)
            == "--enable-lora (keyword enable_lora): LoRA adapters: not part of this version."
        )

    def test_value_of_any_type_is_rejected_with_the_same_message(self) -> None:
        with pytest.raises(ConfigError, match="LoRA adapters: not part of this version"):
            config_from_kwargs({"enable_lora": object()}, LORA)

    def test_default_of_a_planned_option_is_accepted(self) -> None:
        assert config_from_kwargs({"enable_lora": False}, LORA).options == {}

    def test_plugin_option_replaces_the_planned_option(self) -> None:
        feature = plugin("lora", Option("enable_lora", bool, False, "Adapters."))
        for options in (LORA + feature, feature + LORA):
            assert config_from_kwargs({"enable_lora": True}, options).options == {
                "enable_lora": True
            }


class TestClashes:
    def test_duplicate_plugin_option_names_both_plugins(self) -> None:
        with pytest.raises(
            ConfigError,
            match=r"plugin 'b' contributes option 'port', which plugin 'web' has already",
        ):
            FieldTable(PORT + plugin("b", Option("port", int, 1, "")))

    def test_plugin_cannot_redefine_an_engine_option(self) -> None:
        with pytest.raises(
            ConfigError, match="option 'dtype', which the engine itself has already"
        ):
            FieldTable(plugin("b", Option("dtype", str, "", "")))

    def test_invalid_default_is_attributed_to_the_plugin(self) -> None:
        with pytest.raises(
            ConfigError, match="plugin 'b': default of option 'x': expected an integer"
        ):
            FieldTable(plugin("b", Option("x", int, "five", "")))


FILES = {
    "flat.toml": 'max-model-len = "1k"\nport = 9\nplugins = ["none", '
    '"web"]\n[hf_overrides]\nrope_theta = 1e6\n',
    "tables.toml": "[model]\nmax_model_len = 1000\nhf_overrides = {rope_theta = "
    '1e6}\n[plugins]\nplugins = ["none", "web"]\n[web]\nport = 9\n',
    "options.toml": "[model]\nmax_model_len = 1000\nhf_overrides = {rope_theta = "
    '1e6}\n[plugins]\nplugins = ["none", "web"]\n[options]\nport = 9\n',
    "flat.yaml": "max-model-len: 1k\nport: 9\nplugins: [none, web]\nhf_overrides:\n  rope_theta: "
    "1000000.0\n",
    "tables.yml": "model:\n  max_model_len: 1000\n  hf_overrides: {rope_theta: "
    "1000000.0}\nplugins:\n  plugins: [none, web]\nweb: {port: 9}\n",
}


class TestFiles:
    @pytest.mark.parametrize("name", FILES)
    def test_every_form_gives_the_same_configuration(self, tmp_path: Path, name: str) -> None:
        config, provenance = from_file(tmp_path / name, FILES[name], PORT)
        expected = {
            "max_model_len": 1000,
            "hf_overrides": {"rope_theta": 1e6},
            "plugins": ["none", "web"],
            "port": 9,
        }
        assert config == config_from_kwargs(expected, PORT)
        assert re.fullmatch(rf"file .*{name}, line \d+(, \[\w+\])?", provenance.origin_of("port"))
        assert provenance.origin_of("dtype") == "default"

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.toml", "[scheduler]\nmax_num_seq = 1\n", "line 2, [scheduler]: unknown key "
                                                         "'max_num_seq'; did you mean "
                                                         "'max_num_seqs'?"),
            ("a.toml", "\nprot = 1\n", "line 2: unknown key 'prot'; did you mean 'port'?"),
            ("a.toml", "[model]\nblock_size = 1\n", "line 2, [model]: 'block_size' belongs in "
                                                    "[cache], or before the first table."),
            ("a.yaml", "model:\n  modle: x\n", "line 2, [model]: unknown key 'modle'; did you mean "
                                               "'model'?"),
            ("a.yaml", "max_num_seqs: many\n", "line 1: max_num_seqs 'many': expected an integer."),
            ("a.toml", "port = 1\n[web]\nport = 2\n", "'port' is set twice"),
            ("a.toml", "port = \n", "not valid TOML: Invalid value (at line 1"),
            ("a.yaml", "a: [\n", "not valid YAML"),
            ("a.yaml", "- a\n", "must hold keys and values at its top, not list."),
            ("a.ini", "", "unknown kind of file '.ini'; use .toml, .yaml or .yml."),
        ],
    )  # fmt: skip
    def test_error_names_file_and_line(
        self, tmp_path: Path, name: str, text: str, message: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            from_file(tmp_path / name, text, PORT)
        assert message in str(caught.value)
        assert name in str(caught.value)

    def test_missing_file_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"--config nowhere\.toml cannot be read"):
            read_config_file("nowhere.toml")

    def test_empty_yaml_file_sets_nothing(self, tmp_path: Path) -> None:
        assert from_file(tmp_path / "e.yaml", "") == (config_from_kwargs({}), Provenance())

    def test_null_means_the_default(self, tmp_path: Path) -> None:
        assert from_file(tmp_path / "n.yaml", "block_size: null\n")[0].cache.block_size == 16


KEYS = st.sampled_from(
    ["model", "seed", "hf-overrides", "plugins", "web", "port", "options", "cache"]
) | st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_file_yields_a_configuration_or_a_config_error(content: dict[str, Any]) -> None:
    file = ConfigFile(Path("x.yaml"), json.dumps(content), content)
    table = FieldTable(PORT)
    with contextlib.suppress(ConfigError):
        file.peek(table.by_name["plugins"])
        assemble(table, [layer_from_file(table, file)])


def test_later_layer_wins_and_is_the_origin(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('log_level = "error"\nplugins = ["a"]\nseed = 1\n')
    table = FieldTable()
    layers = [
        layer_from_file(table, read_config_file(str(path))),
        layer_from_environment(table, {"ENGINE_LOG_LEVEL": "debug", "ENGINE_PLUGINS": "b"}),
        layer_from_keywords(table, {"log_level": "warning"}),
    ]
    config, provenance = assemble(table, layers)
    assert (config.observability.log_level, provenance.origin_of("log_level")) == (
        "warning",
        "keyword log_level",
    )
    assert (config.plugins.plugins, provenance.origin_of("plugins")) == (
        ["b"],
        "environment ENGINE_PLUGINS",
    )
    assert (config.model.seed, provenance.origin_of("seed")) == (1, f"file {path}, line 3")


def test_environment_variable_of_an_unknown_field_is_ignored() -> None:
    assert layer_from_environment(FieldTable(), {"ENGINE_API_KEY": "x"}) == {}
    keys = FieldTable(plugin("web", Option("api_key", list[str], [], "")))
    assert layer_from_environment(keys, {"ENGINE_API_KEY": "x"})["api_key"].value == ["x"]


def test_configuration_round_trips_through_json_and_msgpack() -> None:
    config = config_from_kwargs(
        {"hf_overrides": {"a": [1, None]}, "served_model_name": ["x"], "port": 9}, PORT
    )
    plain = msgspec.to_builtins(config)
    assert msgspec.convert(plain, EngineConfig) == config
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"model": ""}, "--model is empty"),
        ({"served_model_name": []}, "--served-model-name holds no usable name"),
        ({"max_model_len": 0}, "--max-model-len 0 leaves no room"),
        ({"max_logprobs": -2}, "--max-logprobs -2 is too small; use at least -1."),
        ({"seed": 2**63}, "--seed 9223372036854775808 is too large; use up to "
                          "9223372036854775807."),
        ({"block_size": 0}, "--block-size 0 is too small; use at least 1."),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5 is too large; use up to "
                                          "1."),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens 0 is too small"),
        ({"stream_interval": 0}, "--stream-interval 0 is too small"),
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size 0 is too small"),
        ({"num_threads": 0}, "--num-threads 0 is too small"),
    ],
)  # fmt: skip
def test_value_out_of_bounds_is_rejected_by_flag(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_kwargs(keywords)
    assert message in str(caught.value)


def test_names_are_unique_over_all_sections() -> None:
    table = FieldTable()
    assert len(table.by_name) == sum(
        len(dataclasses.fields(kind)) for kind in table.sections.values()
    )


def test_sections_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CacheConfig().block_size = 1  # type: ignore[misc]
