"""The scripts of `examples/offline` run, and print what they promise."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.system.docs.pages import ROOT

FOLDER = ROOT / "examples" / "offline"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
SLOW = {
    "async_llm_streaming",
    "openai_batch",
    "simple_profiling",
    "structured_outputs",
    "vision_language",
}
"""They start processes, or compute for seconds."""
PRINTS = {
    "async_llm_streaming": "first .*second ",
    "automatic_prefix_caching": r"\A0 of \d+ prompt tokens were cached\n[1-9]\d+ of",
    "basic": "'The capital of France is' -> '.*' -> '.*' -> '",
    "batch_inference": r'\A32 answers; the first: \{"prompt": "Count to 2:", "text": "',
    "beam_search": r"\A(-\d+\.\d+ 'The capital of.*'\n){3}\Z",
    "chat": "Prefix caching keeps the KV blocks.*hello",
    "chat_with_tools": "get_weather.*It is sunny in Paris",
    "context_extension": r"\ATrue 4\n",
    "kv_offloading": r"host memory: [1-9]\d",
    "llm_engine": r"first \['.*second \['.*', '",
    "llm_engine_reset_kv": r"\A(reset while it runs: False\ncached prompt tokens: 0\n"
    r"reset afterwards: True\n){2}\Z",
    "lora_with_quantization": "no adapter -> .*pirate -> Arr",
    "metrics": r"generation_tokens.*8",
    "multilora_inference": "no adapter -> .*pirate -> Arr",
    "openai_batch": r"answered 2, failed 0\nrequest-2 200\nrequest-3 200\n",
    "pooling": r"2 embeddings of 256 .*itself: 1\.0.*\(\d+, 256\)",
    "prompt_embed_inference": "same tokens as from the token ids: True",
    "reproducibility": "same tokens: True",
    "rlhf": "changed: True\nrestored: True",
    "simple_profiling": "1 file of a profile",
    "skip_loading_weights": "8 tokens of no meaning",
    "sleep_mode": "level 1: True.*level 2: True",
    "spec_decode": r"same tokens: True\naccepted tokens: [1-9]\d",
    "structured_outputs": r"\A(sunny|cloudy)\n\d\d degrees\nrain( and rain)?\n\{",
    "vision_language": "red",
}
"""What each prints, as a regular expression over lines."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCRIPTS],
)
def test_an_offline_example_prints_what_it_promises(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert re.search(PRINTS[name], capfd.readouterr().out, re.DOTALL)


def test_the_list_of_offline_examples_is_complete() -> None:
    page = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"`(\w+)\.py`", page)) == set(SCRIPTS) == set(PRINTS)
