"""Flags generated from the fields: spellings, dotted keys and help."""

from __future__ import annotations

import time
from typing import Any

import pytest

from builtin_plugins.features.unsupported_flags.flags import MISSING, engine_options
from builtin_plugins.features.unsupported_flags.not_needed import NOT_NEEDED
from core.cli.flags import FlagParser, add_flags, format_help, parse_flags
from core.config import EngineConfig
from core.config.build import assemble
from core.config.fields import FieldTable, Option
from core.errors import ConfigError

WEB = (
    Option("port", int, 8000, "Port to listen on."),
    Option("extra", dict[str, Any] | None, None, "Extra."),
    Option("pair", tuple[int, int] | None, None, "Two numbers."),
    Option("tls", bool | None, None, "100% safe."),
    Option("enable_expert_parallel", bool, False, "Whole experts on each rank."),
)


def make_table() -> FieldTable:
    options = [("web", option) for option in WEB]
    return FieldTable(options + [("planned", option) for option in engine_options()])


def make_parser(table: FieldTable) -> FlagParser:
    parser = FlagParser(prog="engine run", add_help=False)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--own_flag")
    add_flags(parser, table)
    return parser


def parse(*argv: str) -> EngineConfig:
    table = make_table()
    return assemble(table, [parse_flags(make_parser(table), table, argv)[1]])[0]


def help_of(topic: str) -> str:
    parser = FlagParser(prog="engine run", add_help=False)
    parser.add_argument("--own", help="mine")
    return format_help(parser, make_table(), topic)


@pytest.mark.parametrize(
    "spellings",
    [
        (
            ["--max-model-len", "1000"],
            ["--max_model_len", "1k"],
            ["--max-model-len=1k"],
            ["--max_model_len=1000"],
        ),
        (["--no-enable-prefix-caching"], ["--no_enable_prefix_caching"]),
        (["--tensor-parallel-size", "2"], ["-tp", "2"], ["--tensor_parallel_size=2"]),
        (["--quantization", "x"], ["-q", "x"]),
        (["--max-model-len", "-1"], ["--max-model-len", "auto"], ["--max-model-len=-1"]),
        (
            ["--hf-overrides", '{"rope_theta": 1e6, "a": {"b": "c", "d": [1]}}'],
            [
                "--hf-overrides.rope_theta",
                "1e6",
                "--hf-overrides.a.b",
                "c",
                "--hf-overrides.a.d",
                "[1]",
            ],
            [
                "--hf_overrides",
                '{"a": {"b": "z", "d": [1]}}',
                "--hf_overrides.rope_theta=1e6",
                "--hf_overrides.a.b=c",
            ],
        ),
        (["--extra.x.y", "None"], ["--extra", '{"x": {"y": "None"}}']),
        (["--enable-log-requests"], ["--no-disable-log-requests"], ["--no_disable_log_requests"]),
        (["--no-enable-prefix-caching"], ["--disable-prefix-caching"]),
        (["--log-level", "debug"], ["--log-level", "DEBUG"], ["--log-level=Debug"]),
        (["--gpu-memory-utilization", "0.5"], ["--device_memory_utilization=0.5"]),
    ],
)
def test_all_spellings_are_equivalent(spellings: tuple[list[str], ...]) -> None:
    configs = [parse(*argv) for argv in spellings]
    assert all(config == configs[0] for config in configs)
    assert configs[0] != parse()


def test_each_value_type_is_parsed() -> None:
    config = parse(
        *("--hf-token", "--served-model-name", "a", "b", "--served-model-name", "c"),
        *("--dtype", "half", "--port", "1", "--pair", "1", "2", "--tls"),
        *("--ignore-patterns", "*.bin", "--async-scheduling", "--seed", "-5"),
    )
    assert config.model.hf_token is True
    assert config.model.served_model_name == ["a", "b", "c"]
    assert (config.model.dtype, config.model.seed) == ("half", -5)
    assert config.load.ignore_patterns == ["*.bin"]
    assert config.scheduler.async_scheduling is True
    assert config.options["pair"] == (1, 2)
    assert (config.options["port"], config.options["tls"]) == (1, True)


def test_none_unsets_an_optional_value() -> None:
    assert parse("--max-model-len", "None", "--served-model-name", "None", "--extra", "") == parse()


def test_own_arguments_of_a_command_are_returned_separately() -> None:
    table = make_table()
    args, layer = parse_flags(
        make_parser(table), table, ["--port", "1", "a-model", "--own_flag", "x_y"]
    )
    assert vars(args) == {"model": "a-model", "own_flag": "x_y"}
    assert {name: found.value for name, found in layer.items()} == {"port": 1}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-modle-len", "1"], "unknown flag --max-modle-len; did you mean '--max-model-len'? "
                                   "(see engine run --help)"),
        (["--max-model", "1"], "unknown flag --max-model; did you mean '--max-model-len'?"),
        (["a", "b"], "unknown argument b"),
        (["--port", "x"], "--port 'x': expected an integer."),
        (["--port"], "argument --port: expected one argument (see engine run --help)"),
        (["--dtype", "flaot16"], "--dtype 'flaot16': expected one of auto, bfloat16, float, "
                                 "float16, float32, half; did you mean"),
        (["--max-num-batched-tokens", "1.5K"], "Did you mean to use 1.5k instead?"),
        (["--hf-overrides", "{"], "--hf-overrides '{': expected a JSON object"),
        (["--hf-overrides.a"], "--hf-overrides.a: got no value; expected one after it."),
        (["--pair", "1"], "argument --pair: expected 2 arguments"),
        (["--max-num-seqs", "0"], "--max-num-seqs 0 is too small; use at least 1."),
    ],
)  # fmt: skip
def test_wrong_flag_names_problem_and_action(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert message in str(caught.value)


def test_command_flag_that_clashes_with_an_option_is_rejected() -> None:
    parser = FlagParser(prog="engine run")
    parser.add_argument("--port")
    with pytest.raises(ConfigError, match="engine run and option 'port' of 'web' clash"):
        add_flags(parser, make_table())


REFUSED = [
    name for table in (MISSING, NOT_NEEDED) for options in table.values() for name in options
]
SAMPLES = {bool: [], int: ["7"], float: ["0.5"], str: ["x"]}


WITHOUT_EFFECT = [
    "disable_cascade_attn",
    "skip_mm_profiling",
]
"""Options that switch a missing feature off: accepted with any value."""


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in WITHOUT_EFFECT])
def test_flag_that_is_not_served_is_parsed_and_rejected(name: str) -> None:
    found = make_table().by_name[name]
    kind = found.type
    if found.default is True:
        name = f"no_{name}"
    if kind.mapping:
        value = ['{"a": 1}']
    elif kind.choices or (kind.items and kind.items.choices):
        choices = kind.choices or kind.items.choices  # type: ignore[union-attr]
        value = [str(choice) for choice in choices if found.refuses(choice)][:1]
    else:
        value = SAMPLES[(kind.items or kind).scalars[0]]
    with pytest.raises(
        ConfigError, match=rf"^{found.flag}: .*not (part of this version|supported|needed here)"
    ):
        parse("--" + name.replace("_", "-"), *value)


@pytest.mark.parametrize(
    "flags",
    [
        "--no-disable-hybrid-kv-cache-manager",
        "--swap-space 0",
        "--cp-kv-cache-interleave-size 1",
        "--safetensors-load-strategy lazy",
        "--disable-cascade-attn",
        "--skip-mm-profiling",
    ],
)
def test_value_that_disables_a_missing_feature_is_accepted(flags: str) -> None:
    assert parse(*flags.split()) == parse()


@pytest.mark.parametrize(
    "flags",
    [
        "--disable-hybrid-kv-cache-manager",
        "--swap-space 8",
        "--dcp-kv-cache-interleave-size 16",
        "--cpu-offload-gb 0.5",
        "--no-swa-bounded-replay",
    ],
)
def test_value_that_keeps_a_missing_feature_on_is_rejected(flags: str) -> None:
    with pytest.raises(ConfigError, match=r"not part of this version|not needed here, because"):
        parse(*flags.split())


def test_decode_context_parallelism_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="only with more ranks than key-value heads"):
        parse("-dcp", "2")


def test_flag_that_is_not_needed_names_the_reason() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^--moe-backend: not needed here, because the kernel of an operation is chosen by "
        r"the platform; .*\. Remove it\.$",
    ):
        parse("--moe-backend", "triton")


def test_removed_flags_name_their_replacement() -> None:
    with pytest.raises(
        ConfigError,
        match=r"--guided-decoding-backend: is now --structured-outputs-config\.backend\.$",
    ):
        parse("--guided-decoding-backend", "xgrammar")


def test_refused_flags_are_not_suggested() -> None:
    with pytest.raises(ConfigError, match=r"unknown flag --enable-lorra \(see"):
        parse("--enable-lorra")
    with pytest.raises(ConfigError, match="unknown option 'enable_lorra'; `engine config`"):
        make_table().find("enable_lorra")


def test_rejection_names_the_missing_feature() -> None:
    with pytest.raises(ConfigError, match="--ec-transfer-config: Encoder disaggregation: not part"):
        parse("--ec-transfer-config", '{"a": 1}')


def test_planned_flags_accept_their_defaults() -> None:
    assert parse("--no-enable-dbo", "--swap-space", "4", "--ec-transfer-config", "None") == parse()


class TestHelp:
    def test_every_option_is_listed_in_its_group(self) -> None:
        text = help_of("")
        assert text.startswith("usage: engine run [--own OWN] [options]")
        assert "\nscheduler:\n  Scheduling of requests.\n" in text
        assert "\nweb:\n  --port INT" in text
        assert "Port to listen on. (default: 8000)" in text
        assert "100% safe." in text
        table = make_table()
        assert all(found.flag in text for found in table.by_name.values() if not found.refuse)

    def test_refused_options_are_hidden_except_in_planned_help(self) -> None:
        assert "--enable-dbo" not in help_of("")
        planned = help_of("planned")
        assert "--enable-dbo" in planned
        assert "(dual batch overlap): not part of this version" in " ".join(planned.split())
        assert "--max-model-len" not in planned

    @pytest.mark.parametrize("topic", ["cache", "CacheConfig", "Cache"])
    def test_group_topic_selects_one_group(self, topic: str) -> None:
        text = help_of(topic)
        assert "--block-size" in text
        assert "--max-model-len" not in text

    def test_text_topic_selects_matching_flags(self) -> None:
        text = help_of("--max-num")
        assert "--max-num-seqs" in text
        assert "--max-num-batched-tokens" in text
        assert "--block-size" not in text

    def test_unknown_topic_suggests_a_similar_name(self) -> None:
        with pytest.raises(
            ConfigError, match=r"--help=schduler: .*did you mean 'scheduler'\?; groups: model, load"
        ):
            help_of("schduler")

    def test_descriptions_are_read_only_for_help(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "core.cli.flags.section_docs", lambda: pytest.fail("descriptions were read")
        )
        assert parse("--port", "1").options["port"] == 1


def test_building_and_parsing_flags_is_fast() -> None:
    def once() -> float:
        started = time.thread_time()
        parse("--max-model-len", "1k")
        return time.thread_time() - started

    assert min(once() for _ in range(5)) < 0.030


@pytest.mark.parametrize(
    ("short", "long", "value"),
    [
        ("-dpa", "--data-parallel-address", "host"),
        ("-dpp", "--data-parallel-rpc-port", "1"),
        ("-pcp", "--prefill-context-parallel-size", "2"),
        ("-dcp", "--decode-context-parallel-size", "2"),
        ("-ac", "--attention-config", '{"backend": "X"}'),
        ("-dc", "--diffusion-config", '{"a": 1}'),
    ],
)
def test_short_flags_of_planned_options_are_rejected_by_name(
    short: str, long: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^{long}: .* not part of this version"):
        parse(short, value)


def test_short_switch_of_a_plugin_option() -> None:
    assert parse("-ep").options["enable_expert_parallel"] is True
    assert parse("--enable-expert-parallel", "--disable-expert-parallel") == parse()


def test_renamed_flag_works_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert parse("--disable-log-requests").observability.enable_log_requests is False
    assert (
        "[DEPRECATED] --disable-log-requests is now called --no-enable-log-requests" in caplog.text
    )


@pytest.mark.parametrize(
    ("flag", "feature"),
    [
        ("--logits-processor-pattern", "--logits-processor-pattern"),
        ("--max-num-partial-prefills", "Concurrent Partial Prefill"),
        ("--max-long-partial-prefills", "Concurrent Partial Prefill"),
    ],
)
def test_unsupported_flag_names_its_feature(flag: str, feature: str) -> None:
    expected = f"{feature} is not supported. We recommend to remove {feature} from your config."
    with pytest.raises(ConfigError, match=expected):
        parse(flag, "7")


def test_unknown_short_flag_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^unknown flag -xy \(see"):
        parse("-xy", "2")


def test_help_names_the_groups() -> None:
    lines = help_of("listgroup").splitlines()
    assert "cache              The KV cache." in lines
    assert "web                options of a plugin" in lines
