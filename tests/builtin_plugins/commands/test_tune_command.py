"""`engine tune` chooses weights, context and threads from measurements, and writes them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from core_kernels import speed as kernel_speed
from core_kernels.library import Library, load_library
from core_kernels.speed import Speed

from builtin_plugins.commands.plan.speed import TokenRates
from builtin_plugins.commands.tune.choice import Candidate, choose
from builtin_plugins.commands.tune.measure import fastest, operations_per_s, thread_counts
from builtin_plugins.platforms.api import usable_cores
from core.cli.main import main
from core.testing.checkpoints import make_checkpoint

GB = 10**9
SPEEDS = {
    "bfloat16": Speed("bfloat16", 10 * GB, 100 * GB),
    "int8": Speed("int8", 8 * GB, 60 * GB),
    "int4": Speed("int4", 6 * GB, 20 * GB),
}
needs_library = pytest.mark.skipif(load_library() is None, reason="no C++ library here")
Tune = Callable[..., str]


@pytest.fixture
def tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tune:
    """Return what `engine tune` prints for a small model, with the speeds above."""
    monkeypatch.chdir(tmp_path)
    make_checkpoint("Qwen3ForCausalLM", tmp_path / "model")

    def measured(library: Library, kind: str) -> Speed:
        del library
        return SPEEDS[kind]

    def run(*flags: str) -> str:
        main(["tune", "model", "--dtype", "bfloat16", "--log-level", "error", *flags])
        return capsys.readouterr().out

    monkeypatch.setattr(kernel_speed, "measure_speed", measured)
    return run


def written(name: str = "engine.toml") -> dict[str, object]:
    return tomllib.loads(Path(name).read_text())


@needs_library
def test_written_file_is_a_configuration(tune: Tune, capsys: pytest.CaptureFixture[str]) -> None:
    printed = tune("--block-size", "32", "--hf-overrides.rope_theta", "1e6")
    assert "choice    weights as stored" in printed
    assert "start with: engine serve --config engine.toml" in printed
    found = written()
    assert found["model"] == "model"
    assert found["num_threads"] in thread_counts(usable_cores())
    assert "quantization" not in found
    assert (found["block_size"], found["dtype"]) == (32, "bfloat16")
    assert found["hf_overrides"] == {"rope_theta": 1e6}
    assert main(["config", "--config", "engine.toml", "--json"]) == 0
    effective = json.loads(capsys.readouterr().out)
    assert effective["model"]["max_model_len"]["value"] == found["max_model_len"]


@needs_library
def test_each_plan_and_measurement_logs_one_line(
    tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    tune("--num-threads", "2")
    assert capsys.readouterr().err == ""
    main(["tune", "model", "--dtype", "bfloat16", "--num-threads", "2", "--force"])
    lines = [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "planning with weights as stored",
        "planning with weights int8",
        "planning with weights int4",
        "measuring bfloat16 with threads: 2",
        *(f"measuring {kind} with threads: 2" for kind in ("int4", "int8")),
    ]


@needs_library
def test_slow_machine_gets_smaller_weights(tune: Tune) -> None:
    printed = tune("--tokens-per-second", "1e12")
    assert "int8: " in printed
    assert written()["quantization"] == "int4"


@needs_library
def test_chosen_settings_stay(tune: Tune) -> None:
    tune("--quantization", "int8", "--num-threads", "1", "--max-model-len", "64")
    found = written()
    assert (found["quantization"], found["num_threads"]) == ("int8", 1)
    assert found["max_model_len"] == 64


@needs_library
def test_keys_are_not_written(tune: Tune) -> None:
    tune("--api-key", "secret", "-o", "other.toml")
    text = Path("other.toml").read_text()
    assert "secret" not in text
    assert "# api_key is not written" in text


@needs_library
def test_model_that_does_not_fit_writes_nothing(tune: Tune) -> None:
    printed = tune("--kv-cache-memory-bytes", "1k", "--max-model-len", "128")
    assert "choice    none fits" in printed
    assert not Path("engine.toml").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("-o", "engine.yaml"), "expected a name that ends in .toml"),
        (("-o", "there.toml"), "which exists; expected a new file"),
        (("--device", "cuda"), "--device: got 'cuda'; expected cpu"),
    ],
)
def test_wrong_arguments_are_refused_before_measuring(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.toml").touch()
    assert main(["tune", "scripted:", *flags]) == 2
    assert message in capsys.readouterr().err


def test_force_replaces_a_file(tune: Tune) -> None:
    Path("engine.toml").write_text("seed = 1\n")
    assert tune() == ""
    if load_library() is not None:
        tune("--force")
        assert "seed" not in written()


# --- choices --------------------------------------------------------------------------------------


class Known(Candidate):
    """A candidate with a known speed."""

    __slots__ = ("decode",)

    def rates(self, speeds: object) -> TokenRates:
        return TokenRates(self.decode, 1.0)


def known(quantization: str | None, decode: float, problem: str = "") -> Known:
    candidate = Known(quantization, None, problem)
    object.__setattr__(candidate, "decode", decode)
    return candidate


@pytest.mark.parametrize(
    ("decodes", "expected"),
    [
        ((12, 24, 40), None),
        ((6, 12, 40), "int8"),
        ((1, 2, 4), "int4"),
        ((1, 4, 2), "int8"),
    ],
)
def test_first_weights_that_are_fast_enough_are_chosen(
    decodes: tuple[float, ...], expected: str | None
) -> None:
    found = [known(name, rate) for name, rate in zip((None, "int8", "int4"), decodes, strict=True)]
    chosen = choose(found, {}, 10)
    assert chosen is not None
    assert chosen.quantization == expected


def test_what_does_not_fit_is_not_chosen() -> None:
    found = [known(None, 100, "does not fit"), known("int8", 20)]
    chosen = choose(found, {}, 10)
    assert chosen is found[1]
    assert choose(found[:1], {}, 10) is None


def test_threads_with_the_best_bandwidth_are_chosen() -> None:
    speeds = {4: Speed("bfloat16", 98, 400), 2: Speed("bfloat16", 100, 300)}
    assert fastest(speeds) == 4, "equal bandwidth, better products"
    assert fastest({**speeds, 1: Speed("bfloat16", 150, 100)}) == 1


def test_thread_counts_are_fractions_of_the_cores() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(6) == [6, 3, 1]
    assert thread_counts(64) == [64, 32, 16, 8]


def test_operations_count_multiplications_and_additions() -> None:
    assert operations_per_s(Speed("bfloat16", 1, 100)) == 100
    assert operations_per_s(Speed("int8", 1, 100)) == 200
