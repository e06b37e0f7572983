"""`engine config` refuses the settings that a start refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from builtin_plugins.commands.config.command import check_settings
from core.api import ConfigError
from core.api.plugins import LoadedRegistry, load_plan, make_plan
from core.cli.context import CommandContext
from core.cli.flags import FlagParser, add_flags, parse_flags
from core.cli.main import main
from core.config.build import assemble
from core.config.fields import FieldTable

WRONG = [
    ("--attention-backend", "pagged"),
    ("--attention-backend", "FLASH_ATTN"),
    ("--device", "tpu"),
    ("--distributed-executor-backend", "rai"),
    ("--load-format", "gguf"),
    ("--runner", "poolin"),
    ("--scheduling-policy", "lottery"),
    ("--tokenizer-mode", "fast"),
    ("--kv-eviction-policy", "lur"),
    ("--launcher", "loacl"),
    ("--speculative-config", '{"method": "ngramm", "num_speculative_tokens": 2}'),
    ("--speculative-config", '{"method": "ngram", "num_spec_tokens": 2}'),
    ("--kv-transfer-config", '{"kv_connector": "Nonesuch", "kv_role": "kv_both"}'),
    ("--kv-transfer-config", '{"kv_conector": "OffloadingConnector"}'),
    ("--kv-events-config", '{"enable_kv_cache_event": true}'),
    ("--structured-outputs-config", '{"backend": "grammarly"}'),
    ("--structured-outputs-config", '{"bakend": "xgrammar"}'),
    ("--compilation-config", '{"cudagraph_mod": "NONE"}'),
    ("--pipeline-layer-partition", "3,x"),
    ("--lora-modules", "pirate"),
    ("--data-parallel-external-lb",),
    ("--limit-mm-per-prompt", '{"image": -1}'),
    ("--allowed-local-media-path", "/nowhere"),
]
"""Flags that every start refuses, whatever the model."""
WRONG_OF_SERVERS = [
    ("--tool-call-parser", "herms"),
    ("--reasoning-parser", "thinkk"),
    ("--profiler-config", '{"profiler": "cuda"}'),
    ("--custom-histogram-buckets", '{"latency": [1]}'),
    ("--ssl-keyfile", "/nowhere/key.pem"),
    ("--tenant-header", "X-Tenant", "--api-key", "k"),
    ("--middleware", "nowhere:Nothing"),
    ("--api-server-count", "2", "--stream-resume-timeout", "5"),
    ("--pooler-config", '{"pooling": "CLS"}'),
    ("--pooler-config", '{"dimensions": "many"}'),
    ("--otlp-traces-endpoint", "collector"),
]
"""Flags that a server refuses."""


@pytest.fixture(scope="module")
def registry() -> LoadedRegistry:
    return load_plan(make_plan([]))


def check(registry: LoadedRegistry, flags: Sequence[str]) -> None:
    """Do what `engine config` does with some flags before it prints."""
    table = FieldTable(registry.options())
    parser = FlagParser(prog="engine config")
    add_flags(parser, table)
    args, layer = parse_flags(parser, table, flags)
    config, provenance = assemble(table, [layer])
    check_settings(CommandContext(args, config, provenance, table, registry))


@pytest.mark.parametrize("flags", WRONG + WRONG_OF_SERVERS, ids=" ".join)
def test_config_refuses_what_a_start_refuses(
    flags: tuple[str, ...], registry: LoadedRegistry
) -> None:
    with pytest.raises(ConfigError):
        check(registry, flags)


def test_refusal_prints_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--tool-call-parser", "herms"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "unknown tool call parser 'herms'" in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("flags", WRONG, ids=" ".join)
def test_start_refuses_each_of_them(flags: tuple[str, ...]) -> None:
    assert main(["generate", "scripted:", "--prompt", "a", "--log-level", "error", *flags]) != 0


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--attention-backend", "auto", "--device", "cpu", "--load-format", "dummy"),
        ("--quantization", "int8"),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'),
        ("--tool-call-parser", "hermes", "--reasoning-parser", "think"),
        ("--structured-outputs-config.backend", "guidance"),
        ("--api-key", "k", "--max-request-bytes", "100000"),
    ],
    ids=" ".join,
)
def test_what_a_start_accepts_is_not_refused(
    flags: tuple[str, ...], registry: LoadedRegistry
) -> None:
    check(registry, flags)


def test_variable_that_guards_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert main(["config"]) == 2
    assert "VLLM_API_KEY is set" in capsys.readouterr().err


def test_checks_are_off_with_their_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--plugins", "no:command_config", "--help=model"]) == 0
    assert "--max-model-len" in capsys.readouterr().out
