"""`--launcher`: which launcher starts engine processes and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.clients.api import broker_connection
from builtin_plugins.launchers.local.plugin import engine_admission_extensions
from core import LLM, AsyncLLM, SamplingParams
from core.config import EngineConfig
from core.errors import ConfigError
from core.plugin import load_plan, make_plan

RECORDING = str(Path(__file__).parent / "recording.py")
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 32,
    "num_threads": 1,
    "num_gpu_blocks_override": 32,
    "skip_tokenizer_init": True,
    "log_level": "error",
}
PLUGINS = ["+core.testing.fake_model", f"+{RECORDING}", "no:structured_outputs"]


def settings(file: Path, **fields: Any) -> dict[str, Any]:
    chosen = {"launcher": "recording", "recording_file": str(file)}
    return {**SETTINGS, "plugins": PLUGINS, **chosen, **fields}


def test_chosen_launcher_starts_the_ranks_of_mp(tmp_path: Path) -> None:
    file = tmp_path / "record"
    with LLM("fake:", distributed_executor_backend="mp", **settings(file)) as llm:
        sampling = SamplingParams(temperature=0, max_tokens=2, detokenize=False)
        (output,) = llm.generate([[5, 9]], sampling, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 2
    assert file.read_text().splitlines() == ["worker 0 of ranks, 1", "closed"]


def test_chosen_launcher_starts_the_engine_process(tmp_path: Path) -> None:
    file = tmp_path / "record"
    AsyncLLM("fake:", **settings(file)).shutdown()
    assert file.read_text().splitlines() == ["engine of engine, 1", "closed"]


def test_unknown_launcher_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"(?s)launcher.*'elsewhere'.*local"):
        LLM(
            "fake:",
            distributed_executor_backend="mp",
            launcher="elsewhere",
            plugins=PLUGINS[:1],
            **SETTINGS,
        )


def test_launcher_without_a_process_to_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--launcher: got recording; expected local"):
        LLM("fake:", **settings(tmp_path / "record"))


def test_api_servers_accept_the_launcher_of_their_broker() -> None:
    config = EngineConfig(options={"launcher": "recording"})
    registry = load_plan(make_plan(["none", "launcher_local"]))
    with pytest.raises(ConfigError, match="--launcher: got recording"):
        engine_admission_extensions(config, registry)
    registry = load_plan(make_plan(["none", "launcher_local"]))
    broker_connection(registry, lambda config, registry, listener: None)
    assert engine_admission_extensions(config, registry) == []


def test_data_parallel_backend_is_the_launcher_of_all_engines(tmp_path: Path) -> None:
    file = tmp_path / "record"
    sizes = {"data_parallel_size": 2, "data_parallel_backend": "recording"}
    AsyncLLM("fake:", **settings(file, launcher="local", **sizes)).shutdown()
    engines = [f"engine {rank} of engine {rank}, 1" for rank in (0, 1)]
    assert sorted(file.read_text().splitlines()) == ["closed", "closed", *engines]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_parallel_size": 2, "data_parallel_backend": "ray"}, "next to --launcher recording"),
        ({"data_parallel_backend": "recording"}, "with one engine"),
    ],
)
def test_data_parallel_backend_that_contradicts_other_flags_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^--data-parallel-backend: got \w+ {message}"):
        AsyncLLM("fake:", **settings(tmp_path / "record", **fields))
