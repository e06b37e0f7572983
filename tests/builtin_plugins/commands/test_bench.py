"""`engine bench`: what runs an engine of its own, end to end, on the scripted model and without
any.
"""

from __future__ import annotations

import gc
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.api import FlexibleArgumentParser, bench_latency, bench_throughput
from builtin_plugins.commands.bench.scripts import EngineBenchmark
from core.cli.main import main
from core.errors import ConfigError
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import make_checkpoint

Printed = pytest.CaptureFixture[str]


def words(text: str) -> list[str]:
    return text.split()


SMALL = words("--max-model-len 256 --kv-cache-memory-bytes 1M --log-level error")
SCRIPTED = ["scripted:", *SMALL]


@pytest.fixture(autouse=True)
def frozen_objects_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench step` has a process of its own. Here it would return all tests and modules to the
    garbage collector, and each collection, here and in later files, would take a second.
    """
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def measure(tmp_path: Path, *argv: str) -> dict[str, Any]:
    """Run a benchmark and return its JSON."""
    file = tmp_path / "result.json"
    assert main(["bench", *argv, "--output-json", str(file)]) == 0
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def test_help_lists_the_benchmarks(capsys: Printed) -> None:
    assert main(["bench", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(
        f"  {name} " in printed for name in ("throughput", "latency", "serve", "startup", "step")
    )


@pytest.mark.parametrize(
    ("benchmark", "argv", "figure"),
    [
        (bench_latency, "--batch-size 2 --num-iters 2 --num-iters-warmup 0", "avg_latency"),
        (bench_throughput, "--num-prompts 2 --num-warmups 0", "tokens_per_second"),
        (
            bench_throughput,
            "--num-prompts 2 --num-warmups 0 --async-engine --disable-frontend-multiprocessing",
            "tokens_per_second",
        ),
    ],
)
def test_scripts_get_the_result(
    benchmark: EngineBenchmark, argv: str, figure: str, capsys: Printed
) -> None:
    parser = FlexibleArgumentParser()
    benchmark.add_cli_args(parser)
    sizes = "--input_len 8 --output_len 4 --kv_cache_memory_bytes 1M --log_level error"
    flags = ["--model", "scripted:", "--max_model_len=256", *words(sizes), *words(argv)]
    result = benchmark.main(parser.parse_args(flags))
    assert (result["model"], result[figure] > 0) == ("scripted:", True)
    assert "scripted:" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="more than the context of 256"):
        benchmark.main(parser.parse_args([*flags, "--input-len", "300"]))


def test_throughput_reports_acceptance_length(capsys: Printed) -> None:
    speculation = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})
    sizes = [
        "--num-prompts",
        "2",
        "--input-len",
        "24",
        "--output-len",
        "40",
        "--temperature",
        "0",
        "--num-warmups",
        "0",
    ]
    options = [
        "--max-model-len",
        "256",
        "--log-level",
        "error",
        "--speculative-config",
        speculation,
    ]
    assert main(["bench", "throughput", *sizes, *options]) == 0
    assert "with draft tokens" in capsys.readouterr().out


@pytest.mark.parametrize("name", words("throughput latency serve startup step"))
def test_every_benchmark_has_help_with_its_own_flags(name: str, capsys: Printed) -> None:
    assert main(["bench", name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"usage: engine bench {name}" in printed
    assert "--output-json" in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [],
            "engine bench: a subcommand is missing; there are: throughput, latency, serve, "
            "startup, step, sweep",
        ),
        (
            ["latncy"],
            "unknown subcommand 'latncy'; there are: throughput, latency, serve, startup, step, "
            "sweep; did you mean",
        ),
        (
            ["latency", *SCRIPTED, "--batch-size", "0"],
            "--batch-size 0 is too small; use at least 1.",
        ),
        (["latency", *SCRIPTED, "--output-json", "nowhere/file.json"], "the folder does not exist"),
        (["latency", *SCRIPTED, "--plot", "picture.gif"], "use .png, .svg, .pdf."),
        (["latency", *SCRIPTED, "--input-len", "300"], "more than the context of 256"),
        (
            ["throughput", *SCRIPTED, "--dataset-name", "custom"],
            "needs a file. Set --dataset-path.",
        ),
        (
            ["throughput", *SCRIPTED, "--dataset-path", "x"],
            "--dataset-path goes with --dataset-name custom,",
        ),
        (["throughput", *SCRIPTED, "--random-range-ratio", "1"], "use 0 to less than 1."),
        (["throughput", *SCRIPTED, "--output-len", "-1"], "--output-len -1 is out of range"),
        (["throughput", *SCRIPTED, "--hf-output-len", "0"], "--hf-output-len 0 is out of range"),
        (["startup", *SCRIPTED, "--num-iters-warm", "0", "--num-iters-cold", "0"], "are both 0"),
        (
            ["startup", *SCRIPTED, "--num-iters-warm", "0"],
            "only the files of a model in a local folder",
        ),
        (["step", "--running", "0"], "--running 0 is too small"),
        (["step", "--arrivals", "0.9"], "use 0 to 0.5"),
    ],
)
def test_invalid_measurement_is_rejected(argv: list[str], message: str, capsys: Printed) -> None:
    assert main(["bench", *argv]) == 2
    assert message in capsys.readouterr().err


def test_plot_without_matplotlib_names_the_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *package: (name != "matplotlib" and find(name, *package)) or None,
    )
    assert main(["bench", "latency", *SCRIPTED, "--plot", "picture.png"]) == 2
    assert "`pip install core[bench]`" in capsys.readouterr().err


def test_throughput_of_the_async_engine_counts_every_token(tmp_path: Path) -> None:
    sizes = words("--num-prompts 6 --input-len 10 --output-len 4 --num-warmups 1 --async-engine")
    result = measure(tmp_path, "throughput", *SCRIPTED, *sizes)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (60, 24)


def test_throughput_counts_every_token(tmp_path: Path, capsys: Printed) -> None:
    flags = words(
        "--num-prompts 6 --input-len 10 --output-len 4 --num-iters 3 --random-prefix-len 2"
    )
    result = measure(tmp_path, "throughput", *SCRIPTED, *flags)
    assert (
        result["num_requests"],
        result["total_input_tokens"],
        result["total_output_tokens"],
    ) == (6, 72, 24)
    assert result["total_num_tokens"] == 96
    assert len(result["elapsed_times"]) == 3
    assert result["tokens_per_second"] == pytest.approx(96 / result["elapsed_time"])
    assert result["requests_per_second"] == pytest.approx(6 / result["elapsed_time"])
    assert "generated tokens a second" in capsys.readouterr().out


def test_throughput_of_several_sequences_counts_all_of_them(tmp_path: Path) -> None:
    result = measure(
        tmp_path,
        "throughput",
        *SCRIPTED,
        *words("--num-prompts 2 --input-len 5 --output-len 3 --n 2"),
    )
    assert result["total_output_tokens"] == 12


def test_throughput_of_a_dataset_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one two", "output_tokens": 3}\n{"prompt": "three", "output_tokens": 5}\n'
    )
    flags = [
        "--dataset-name",
        "custom",
        "--dataset-path",
        str(file),
        "--num-prompts",
        "4",
        "--output-len",
        "-1",
    ]
    result = measure(tmp_path, "throughput", *SCRIPTED, *flags)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (24, 16)


def test_failed_requests_are_an_error(capsys: Printed) -> None:
    argv = words("--num-prompts 3 --scripted-fail-at-token 2 --num-warmups 0")
    assert main(["bench", "throughput", *SCRIPTED, *argv]) == 1
    output = capsys.readouterr()
    assert "3 of 3 requests failed" in output.err
    assert output.out == ""


def test_latency_has_a_value_for_every_batch(tmp_path: Path, capsys: Printed) -> None:
    flags = (
        "--input-len 8 --output-len 4 --batch-size 2 --num-iters 5 --num-iters-warmup 2 "
        "--disable-detokenize"
    )
    result = measure(tmp_path, "latency", *SCRIPTED, *flags.split())
    assert len(result["latencies"]) == 5
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 5)
    assert list(result["percentiles"]) == words("10 25 50 75 90 99")
    assert result["percentiles"]["50"] == sorted(result["latencies"])[2]
    assert "Latency of scripted:, 2 x (8 + 4) tokens, 5 batches" in capsys.readouterr().out


def test_latency_of_a_checkpoint(tmp_path: Path) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model")
    flags = words(
        "--input-len 4 --output-len 3 --batch-size 2 --num-iters 1 --num-iters-warmup 0 --dtype "
        "float32"
    )
    assert len(measure(tmp_path, "latency", str(model), *SMALL, *flags)["latencies"]) == 1
    found = measure(
        tmp_path, "latency", str(model), *SMALL, *flags, *words("--use-beam-search --n 2")
    )
    assert (found["use_beam_search"], found["n"], len(found["latencies"])) == (True, 2, 1)


@pytest.mark.slow  # four starts
def test_startup_is_measured_in_stages_cold_and_warm(tmp_path: Path, capsys: Printed) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model")
    flags = words("--num-iters-warm 1 --num-iters-cold 1 --dtype float32")
    result = measure(tmp_path, "startup", str(model), *SMALL, *flags)
    for kind in ("cold", "warm"):
        stages = result[kind]["stages"]
        assert list(stages) == ["interpreter", "imports", "model", "first token", "end"]
        assert all(seconds > 0 for seconds in stages.values())
        assert result[kind]["first_token_s"] == pytest.approx(sum(stages.values()) - stages["end"])
    assert "Python and its libraries stay in it" in capsys.readouterr().out


def test_failed_start_reports_the_process_output(capsys: Printed) -> None:
    argv = [
        "bench",
        "startup",
        *SCRIPTED,
        "--num-iters-warm",
        "1",
        "--attention-backend",
        "nonsense",
    ]
    assert main(argv) == 1
    message = capsys.readouterr().err
    assert "the started process failed" in message
    assert "nonsense" in message


@pytest.mark.slow  # measures every figure; a faster test runs the command below
def test_step_needs_no_model(tmp_path: Path, capsys: Printed) -> None:
    flags = words(
        "--running 1 8 --steps 30 --warmup-steps 5 --rounds 2 --arrivals 0.1 --log-level error"
    )
    result = measure(tmp_path, "step", *flags)
    assert [size["num_running"] for size in result["running"]] == [1, 8]
    for size in result["running"]:
        assert size["request_us"] == pytest.approx(size["step_us"] / size["num_running"])
        assert 0 < size["step_us"] <= size["p99_us"]
        assert len(size["rounds_us"]) == 2
    assert (result["block_size"], result["prefix_caching"], result["arrivals"]) == (16, True, 0.1)
    printed = capsys.readouterr().out
    assert "blocks of 16 tokens, prefix caching on" in printed
    assert "a token, 10% arrivals" in printed


def test_step_keeps_the_requested_number_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from builtin_plugins.commands.bench.noop_executor import NoopExecutor

    sampled: list[int] = []
    collect = NoopExecutor.collect

    def counted(executor: NoopExecutor) -> Any:
        result = collect(executor)
        sampled.append(len(result.rows))
        return result

    monkeypatch.setattr(NoopExecutor, "collect", counted)
    flags = words(
        "--running 20 --steps 50 --warmup-steps 5 --rounds 1 --arrivals 0.05 --log-level error"
    )
    measure(tmp_path, "step", *flags)
    assert set(sampled) == {20}


@pytest.mark.parametrize("name", ["latency", "throughput", "step"])
def test_plots_are_drawn(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = words("--num-iters 2 --input-len 4 --output-len 2")
    argv = (
        words("--running 1 2 --steps 9 --rounds 1 --log-level error")
        if name == "step"
        else [*SCRIPTED, *small]
    )
    picture = tmp_path / "picture.svg"
    assert main(["bench", name, *argv, "--plot", str(picture)]) == 0
    assert "</svg>" in picture.read_text()


def test_noop_executor_is_not_selectable() -> None:
    names = [registered.entry.name for registered in load_plan(make_plan()).entries("executors")]
    assert "uni" in names
    assert "stub" not in names
