"""`engine models`: what is served, how, and why the rest is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.commands.models.check import installed_types, print_check, type_states
from builtin_plugins.commands.models.command import read_table, rows
from builtin_plugins.commands.models.row import Row
from core.cli.main import main
from core.plugin.entry import Entry
from scripts.models_page import models_page

ROOT = Path(__file__).parents[3]
List = Callable[..., list[dict[str, Any]]]
NATIVE = """
llama mistral ministral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text
gemma4_text phi phi3 phimoe gpt2 gpt_neo gpt_neox gptj gpt_bigcode codegen opt bloom falcon mpt
stablelm starcoder2 olmo olmo2 olmo3 olmoe flex_olmo cohere cohere2 granite granitemoe
granitemoeshared glm glm4 glm4_moe exaone4 ernie4_5 ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe
internlm3 nemotron persimmon apertus arcee smollm3 seed_oss helium dots1 afmoe bitnet dbrx jais2
gpt_oss llama4_text minimax_m2 solar_open hyperclovax biogpt xglm deepseek_v2 deepseek_v3 minicpm3
longcat_flash glm4_moe_lite youtu mamba mamba2 falcon_mamba jamba bamba zamba2 falcon_h1
nemotron_h granitemoehybrid qwen3_next qwen3_5_text kimi_linear minimax olmo_hybrid lfm2 lfm2_moe
recurrent_gemma
"""
"""Model types that must have a native architecture."""


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str]) -> List:
    """Return a function that runs the command and returns what it printed as JSON."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        assert main(["models", *arguments, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return run


def entry(name: str, **more: Any) -> Any:
    return SimpleNamespace(
        entry=Entry(name, "nowhere:spec", "", **more), plugin=SimpleNamespace(name="a_plugin")
    )


def test_architecture_reports_how_it_is_served(listed: List) -> None:
    found = {row["architecture"]: row for row in listed()}
    assert found["LlamaForCausalLM"]["how"] == "native"
    assert "q_proj" in found["LlamaForCausalLM"]["lora_targets"]
    assert found["LlamaForCausalLM"]["tensor_parallel"]
    assert found["BeamForCausalLM"]["how"] == "generic"
    assert found["BeamForCausalLM"]["sliding_window"]
    assert not found["BeamForCausalLM"]["tensor_parallel"]
    assert found["XLNetLMHeadModel"]["how"] == "no"
    assert "attends to later ones" in found["XLNetLMHeadModel"]["reason"]


def test_architecture_is_found_by_model_type(listed: List) -> None:
    assert [row["architecture"] for row in listed("gpt_neo")] == ["GPTNeoForCausalLM"]


def test_architecture_without_class_in_transformers_has_its_reason(listed: List) -> None:
    (row,) = listed("GritLM")
    assert row["how"] == "no"
    assert "bidirectional attention" in row["reason"]


def test_filter_by_how_it_is_served(listed: List) -> None:
    assert {row["how"] for row in listed("--how", "generic")} == {"generic"}


def test_unknown_architecture_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "lama"]) != 0
    error = capsys.readouterr().err
    assert "expected an architecture or model_type; did you mean 'llama'?" in error


def test_text_shows_every_architecture_and_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 180
    assert lines[-1].endswith("not served")
    assert main(["models", "llama"]) == 0
    assert "linear layers    down_proj" in capsys.readouterr().out


def test_third_party_architecture_is_listed_with_its_plugin() -> None:
    (row,) = rows([entry("AcmeForCausalLM")], {})
    assert (row.how, row.plugin) == ("native", "a_plugin")


def test_generic_architectures_need_the_generic_plugin() -> None:
    table = {"BeamForCausalLM": {"tried": "generic", "model_types": ["beam"]}}
    assert [row.how for row in rows([], table)] == ["no"]
    assert [
        row.how for row in rows([entry("any", gives=frozenset({"any architecture"}))], table)
    ] == ["generic"]


def test_transformers_coverage(listed: List) -> None:
    assert sum(len(row["model_types"]) for row in listed() if row["how"] != "no") >= 136


def test_promised_types_are_native(listed: List) -> None:
    native = {kind for row in listed() if row["how"] == "native" for kind in row["model_types"]}
    assert [kind for kind in NATIVE.split() if kind not in native] == []


def test_the_readme_counts_what_the_table_shows() -> None:
    counted = re.search(
        r"Of the (\d+) model types .*\*\*(\d+)\s+are\s+served\*\*:\s+(\d+) natively",
        models_page(),
        re.S,
    )
    assert counted is not None
    types, served, native = counted.groups()
    sentence = (
        f"{served} of the {types} causal-LM types of transformers 5.23, {native} of them natively"
    )
    assert sentence in (ROOT / "README.md").read_text()


def test_the_list_needs_no_torch() -> None:
    code = (
        "import sys; from core.cli.main import main; main(['models']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_page_lists_every_model_that_reads_images_in_vllm() -> None:
    page = models_page().partition("## Models that read images")[2]
    for line in (
        "| Gemma3ForConditionalGeneration | `gemma3` | native |",
        "| FuyuForCausalLM | `fuyu` | native |",
        "| KimiVLForConditionalGeneration |  | refused: transformers 5.23 has no such class",
        "| Qwen2_5OmniModel |  | refused: it writes sound",
    ):
        assert f"\n{line}" in page


def test_the_table_has_a_reason_or_facts_for_every_type() -> None:
    for name, row in read_table().items():
        if row["tried"] == "generic":
            assert row.get("reason") or row.get("lora_targets"), name


def test_check_knows_every_type_of_the_installed_transformers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {line.split()[0]: line.split()[1] for line in lines[:-1]}
    assert set(states) == set(installed_types())
    assert states["llama"] == "native"
    assert states["beam"] == "generic"
    assert lines[-1].endswith(" 0 untried")


def test_check_fails_with_a_list_of_types_that_were_not_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = [Row("LlamaForCausalLM", "native", ("llama",)), Row("Old", "no", ("old",), reason="it")]
    types = {"llama": "LlamaForCausalLM", "new": "NewForCausalLM", "old": "Old", "second": "Old"}
    states = type_states(known, types)
    assert [each.state for each in states] == ["native", "untried", "no", "no"]
    assert print_check(states, "6.0", as_json=False) == 1
    printed = capsys.readouterr()
    assert "untried: new." in printed.err
    assert "old                              no       it" in printed.out
    assert (
        print_check([each for each in states if each.state == "native"], "6.0", as_json=True) == 0
    )
    assert json.loads(capsys.readouterr().out)[0]["architecture"] == "LlamaForCausalLM"


def test_check_takes_no_filter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "llama", "--check"]) != 0
    assert "--check: got a filter" in capsys.readouterr().err
