"""`engine plan` estimates tokens per second from measured products and from what a token reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from core_kernels import speed as kernel_speed
from core_kernels.library import Library, load_library
from core_kernels.speed import Speed

from builtin_plugins.commands.plan import speed
from core.cli.main import main
from core.testing.checkpoints import make_checkpoint

GB = 10**9
SPEEDS = {
    "bfloat16": Speed("bfloat16", 10 * GB, 100 * GB),
    "int8": Speed("int8", 8 * GB, 60 * GB),
    "int4": Speed("int4", 5 * GB, 20 * GB),
}

needs_library = pytest.mark.skipif(load_library() is None, reason="no C++ library here")
Command = Callable[..., str]


@pytest.fixture
def plan(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Return what `engine plan` prints for an architecture, with the speeds above."""

    def printed(architecture: str, *flags: str) -> str:
        folder = tmp_path / architecture
        if not folder.exists():
            make_checkpoint(architecture, folder)
        main(["plan", str(folder), "--dtype", "bfloat16", "--log-level", "error", *flags])
        return capsys.readouterr().out

    def measured(library: Library, kind: str) -> Speed:
        del library
        return SPEEDS[kind]

    monkeypatch.setattr(kernel_speed, "measure_speed", measured)
    return printed


def test_rates_are_the_sum_over_kinds_of_storage() -> None:
    rates = speed.token_rates({"bfloat16": 5 * GB, "int8": 4 * GB}, SPEEDS)
    assert rates.decode == pytest.approx(1 / (0.5 + 0.5))
    assert rates.prefill == pytest.approx(1 / (0.05 + 4 / 60))


def test_packed_bytes_are_of_the_kind_that_is_named() -> None:
    stored = {"uint8": 1000, "bfloat16": 500, "int64": 1}
    assert speed.stored_kinds(stored, "int4") == {"int4": 1001, "bfloat16": 500}
    assert speed.stored_kinds({"uint8": 1000, "float32": 5}, "gptq") == {"int8": 1000}
    assert speed.stored_kinds({"uint8": 1000}, "fp8") == {"fp8": 1000}


@needs_library
def test_plan_names_the_speed_and_what_is_faster(plan: Command) -> None:
    found = json.loads(plan("Qwen3ForCausalLM", "--json"))
    read = sum(found["token_bytes"].values())
    assert found["speed"]["decode_tokens_per_s"] == pytest.approx(10 * GB / read, rel=0.05)
    assert found["speed"]["prefill_tokens_per_s"] == pytest.approx(100 * GB / read, rel=0.05)
    faster = found["speed"]["int8_decode_tokens_per_s"] / found["speed"]["decode_tokens_per_s"]
    assert faster == pytest.approx(0.8 / speed.INT8_SHARE, rel=0.01)
    lines = plan("Qwen3ForCausalLM").splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("speed ")]
    assert "tokens/s for one request, prompts" in lines[at]
    assert lines[at + 1].strip().startswith("with --quantization int8: about ")


@needs_library
def test_int8_is_not_named_where_it_is_chosen_or_slower(
    plan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--quantization" not in plan("Qwen3ForCausalLM", "--quantization", "int8")
    monkeypatch.setitem(SPEEDS, "int8", Speed("int8", 4 * GB, 60 * GB))
    assert "--quantization" not in plan("Qwen3ForCausalLM")


@needs_library
def test_a_token_reads_the_chosen_experts_and_no_untied_embedding(plan: Command) -> None:
    moe = json.loads(plan("MixtralForCausalLM", "--json"))
    assert sum(moe["token_bytes"].values()) < 0.8 * sum(moe["weight_bytes"])
    dense = json.loads(plan("LlamaForCausalLM", "--json"))
    assert sum(dense["token_bytes"].values()) < sum(dense["weight_bytes"])


@needs_library
def test_forced_isa_is_the_one_that_is_measured(plan: Command) -> None:
    library = load_library()
    assert library is not None
    best = library.core_kernels_isa()
    try:
        found = json.loads(plan("Qwen3ForCausalLM", "--json", "--isa", "generic"))
        assert found["speed"]["isa"] == "generic"
    finally:
        library.core_kernels_use(best)
    assert json.loads(plan("Qwen3ForCausalLM", "--json"))["speed"]["isa"] == best.decode()


def test_plan_of_another_device_has_no_speed(
    plan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core_kernels.library.load_library", lambda: None)
    assert json.loads(plan("Qwen3ForCausalLM", "--json"))["speed"] is None
