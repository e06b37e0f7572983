"""Images with every other feature: the cells of the table in docs/guides/models.md."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from safetensors.torch import load_file, save_file

from core import LLM, LoRARequest, RequestOutput, SamplingParams, StructuredOutputsParams
from core.errors import ModelError
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter, merge
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.checkpoints.common import VOCAB
from tests.builtin_plugins.models.vision.parity import (
    AGAIN,
    NONE,
    ONE,
    OTHER,
    THREE,
    Case,
    counters,
)
from tests.builtin_plugins.quant_methods.writers.gptq import config as gptq_config
from tests.builtin_plugins.quant_methods.writers.gptq import writer as gptq_writer

pytestmark = pytest.mark.slow
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 40,
}
CASES = (ONE, OTHER, THREE, AGAIN, NONE)
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
TEXT_LAYERS = r"language_model.*layers|^model\.layers"
ADAPTED = r"language_model.*layers(?!.*cross_attn\.[kv]_proj)|^model\.layers"
"""Not the keys and values of encoder states."""
Run = Callable[..., list[RequestOutput]]


@dataclass(frozen=True)
class Model:
    """A tiny checkpoint, and its answers without any feature."""

    name: str
    folder: Path
    expected: list[list[int]]

    @property
    def image(self) -> str:
        return MODELS[self.name].image

    def start(self, folder: Path | None = None, **settings: Any) -> LLM:
        return LLM(str(folder or self.folder), **{**SETTINGS, **settings})

    def run(
        self, llm: LLM, cases: Sequence[Case] = CASES, params: Any = GREEDY, **keywords: Any
    ) -> list[RequestOutput]:
        prompts = [case.prompt(self.image) for case in cases]
        return llm.generate(prompts, params, use_tqdm=False, **keywords)


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def first_logprobs(outputs: Sequence[RequestOutput]) -> list[float]:
    """Return the log-probability of each first token."""
    found = []
    for output in outputs:
        answer = output.outputs[0]
        assert answer.logprobs is not None
        found.append(answer.logprobs[0][answer.token_ids[0]].logprob)
    return found


@pytest.fixture(scope="module", params=["gemma3", "mllama", "qwen3_vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Gemma 3 has spans that see ahead, and windows; Mllama has cross attention; Qwen3-VL has
    M-RoPE and deepstack.
    """
    folder = tmp_path_factory.mktemp(request.param)
    MODELS[request.param].make(folder)
    made = Model(request.param, folder, [])
    with made.start() as llm:
        made.expected.extend(tokens(made.run(llm)))
    assert made.expected[0] != made.expected[1]
    return made


def test_ngram_speculation_changes_no_token(model: Model) -> None:
    config = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
        "adaptive": False,
    }
    with model.start(speculative_config=config) as llm:
        outputs = model.run(llm)
    assert tokens(outputs) == model.expected
    assert sum(output.counts["spec_decode_num_draft_tokens"] for output in outputs) > 0


def test_draft_model_of_text_changes_no_token(model: Model, tmp_path: Path) -> None:
    draft = make_checkpoint("LlamaForCausalLM", tmp_path / "draft", vocab_size=VOCAB)
    config = {"model": str(draft), "num_speculative_tokens": 2, "adaptive": False}
    with model.start(speculative_config=config) as llm:
        outputs = model.run(llm)
    assert tokens(outputs) == model.expected
    assert sum(output.counts["spec_decode_num_draft_tokens"] for output in outputs) > 0


def test_adapter_of_the_text_part_equals_the_merged_checkpoint(
    model: Model, tmp_path: Path
) -> None:
    adapter = make_adapter(model.folder, tmp_path / "adapter", 4, only=ADAPTED)
    merged = merge(model.folder, adapter, tmp_path / "merged")
    with model.start(merged) as llm:
        expected = tokens(model.run(llm))
    assert expected != model.expected
    with model.start(enable_lora=True, max_lora_rank=8) as llm:
        assert tokens(model.run(llm, lora_request=LoRARequest("a", 1, str(adapter)))) == expected
        assert tokens(model.run(llm)) == model.expected


def test_adapter_of_the_tower_or_its_states_is_refused(model: Model, tmp_path: Path) -> None:
    only = r"vision_tower|visual|vision_model|cross_attn\.k_proj"
    adapter = make_adapter(model.folder, tmp_path / "adapter", 4, only=only)
    with model.start(enable_lora=True, max_lora_rank=8) as llm:
        outputs = model.run(llm, lora_request=LoRARequest("a", 1, str(adapter)))
        for output in outputs:
            assert output.outputs[0].finish_reason == "error"
            assert "the model has no target for" in str(output.refusal)
        assert tokens(model.run(llm)) == model.expected


def test_gptq_text_layers_equal_their_numbers_as_floats(model: Model, tmp_path: Path) -> None:
    write = gptq_writer(bits=4, group=16)
    stored: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, tensor in load_file(model.folder / "model.safetensors").items():
        is_linear = tensor.ndim == 2 and re.search(TEXT_LAYERS, name)
        if not is_linear:
            stored[name] = plain[name] = tensor
            continue
        parts, plain[name] = write(tensor)
        module = name.removesuffix(".weight")
        stored |= {f"{module}.{part}": value for part, value in parts.items()}
    folders = {"stored": stored, "plain": plain}
    for name, tensors in folders.items():
        shutil.copytree(model.folder, tmp_path / name)
        contiguous = {key: value.contiguous() for key, value in tensors.items()}
        save_file(contiguous, tmp_path / name / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "stored" / "config.json").read_text())
    config["quantization_config"] = gptq_config(bits=4, group=16)
    (tmp_path / "stored" / "config.json").write_text(json.dumps(config))
    with model.start(tmp_path / "plain") as llm:
        expected = tokens(model.run(llm))
    with model.start(tmp_path / "stored") as llm:
        assert tokens(model.run(llm)) == expected


@pytest.mark.parametrize(
    "settings", [{"quantization": "int8"}, {"kv_cache_dtype": "fp8"}], ids=["int8", "fp8 cache"]
)
def test_rounded_numbers_give_nearly_the_same_answers(
    model: Model, settings: Mapping[str, Any]
) -> None:
    with model.start() as llm:
        exact = model.run(llm)
    with model.start(**settings) as llm:
        rounded = model.run(llm)
        alone = [model.run(llm, [case])[0] for case in CASES]
    assert tokens(rounded) == tokens(alone)
    assert tokens(rounded)[0] != tokens(rounded)[1]
    assert first_logprobs(rounded) == pytest.approx(first_logprobs(exact), abs=0.25)


def test_blocks_of_a_tier_need_no_encoder(model: Model) -> None:
    transfer = {
        "kv_connector": "offload",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 16 << 20},
    }
    room = {"num_gpu_blocks_override": 16, "max_model_len": None}
    if model.name == "mllama":
        with pytest.raises(ModelError, match="got a model with cross attention"):
            model.start(kv_transfer_config=transfer)
        return
    with model.start(kv_transfer_config=transfer, **room) as llm:
        assert tokens(model.run(llm)) == model.expected
        before = counters(llm)["encoded"]
        others = [{"prompt": chr(97 + i) * 150} for i in range(8)]
        llm.generate(others, GREEDY, use_tqdm=False)  # evicts all blocks of the device
        (output,) = model.run(llm, [THREE])
        assert output.num_cached_tokens
        assert tokens([output]) == [model.expected[CASES.index(THREE)]]
        assert counters(llm)["encoded"] == before


def test_structured_outputs_have_their_form(model: Model) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    forms = (
        StructuredOutputsParams(json=schema),
        StructuredOutputsParams(choice=["cat", "dog", "bird"]),
    )
    with model.start() as llm:
        for form in forms:
            params = SamplingParams(temperature=0, max_tokens=60, structured_outputs=form)
            for output in model.run(llm, params=params):
                answer = output.outputs[0]
                if form.choice:
                    assert answer.text in form.choice
                elif answer.finish_reason == "stop":
                    assert isinstance(json.loads(answer.text)["n"], int)
                else:
                    assert answer.text.startswith("{")
