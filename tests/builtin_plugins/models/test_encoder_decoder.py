"""Encoder-decoder models equal transformers for every way of running a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from builtin_plugins.commands.api import memory_plan
from core import LLM, AsyncLLM, RequestOutput, SamplingParams
from core.errors import ModelError
from core.frontend.startup import load_from_kwargs
from core.testing.checkpoints import make_checkpoint
from core.testing.invariants import check_scheduler
from core.testing.tiny_configs import VOCAB
from core.testing.tiny_encoder_decoders import ENCODER_DECODERS

FAST = (
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
    "WhisperForConditionalGeneration",
)
THREADS = str(Path(__file__).parents[1] / "executors" / "thread_ranks.py")
SHAPES = ((70, 1), (3, 21), (33, 6), (45, 38))
"""Tokens the encoder reads (beyond every distance that has a number of its own), and the decoder's
prompt.
"""
NUM_GENERATED = 8
TOLERANCE = 1e-3
GAP = 1e-3
"""Least distance between the two best logits anywhere on a path; closer ones could not be compared.
"""


@dataclass(frozen=True)
class Case:
    """A request and transformers' results."""

    prompt: Any
    tokens: list[int]
    logprobs: list[float]


@torch.inference_mode()
def draw_case(model: Any, read: int, text_out: int) -> Case:
    """Draw inputs until transformers' path is clear of ties."""
    start = model.generation_config.decoder_start_token_id
    for seed in range(100):
        generator = torch.Generator().manual_seed(1000 * seed + read)
        inputs: dict[str, torch.Tensor]
        source: dict[str, Any]
        if hasattr(model.config, "num_mel_bins"):
            shape = (model.config.num_mel_bins, 2 * model.config.max_source_positions)
            features = torch.randn(shape, generator=generator)
            inputs = {"input_features": features[None]}
            source = {"input_features": features.numpy()}
        else:
            ids = torch.randint(3, 290, (read,), generator=generator)
            inputs = {"input_ids": ids[None]}
            source = {"prompt_token_ids": ids.tolist()}
        prompt = [start, *torch.randint(3, 290, (text_out - 1,), generator=generator).tolist()]
        tokens = list(prompt)
        logprobs = []
        gaps = []
        for _ in range(NUM_GENERATED):
            logits = model(
                **inputs, decoder_input_ids=torch.tensor([tokens]), use_cache=False
            ).logits[0, -1]
            best = logits.topk(2).values
            gaps.append(float(best[0] - best[1]))
            tokens.append(int(logits.argmax()))
            logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
        if min(gaps) > GAP:
            whole = {"encoder_prompt": source, "decoder_prompt": {"prompt_token_ids": prompt}}
            return Case(whole, tokens[text_out:], logprobs)
    raise AssertionError("no prompt without a tie was found")


@pytest.fixture(scope="module")
def cases(checkpoint: Callable[[str], Path]) -> Callable[[str], list[Case]]:
    """Return a function from architecture to requests and their truth, computed once."""
    known: dict[str, list[Case]] = {}

    def look_up(architecture: str) -> list[Case]:
        if architecture not in known:
            known[architecture] = truth(architecture, checkpoint(architecture))
        return known[architecture]

    return look_up


def truth(architecture: str, folder: Path) -> list[Case]:
    model = (
        getattr(transformers, architecture)
        .from_pretrained(folder, attn_implementation="eager")
        .eval()
    )
    return [draw_case(model, read, text_out) for read, text_out in SHAPES]


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 100,
        "kv_cache_memory_bytes": 1 << 23,
    }
    return LLM(str(folder), **(defaults | {"num_threads": 1, "log_level": "error"} | settings))


PARAMS = SamplingParams(temperature=0, max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=0)


def assert_equal(outputs: Sequence[RequestOutput], target: Sequence[Case]) -> None:
    for output, case in zip(outputs, target, strict=True):
        for completion in output.outputs:
            assert list(completion.token_ids) == case.tokens
            assert completion.logprobs is not None
            found = [
                position[token].logprob
                for position, token in zip(completion.logprobs, case.tokens, strict=True)
            ]
            assert found == pytest.approx(case.logprobs, abs=TOLERANCE)


WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunks of 8": {"max_num_batched_tokens": 8},
    "blocks of 4": {"block_size": 4},
    "reference attention": {"attention_backend": "reference"},
    "async scheduling": {"async_scheduling": True},
}
PAIRS = [
    pytest.param(
        name,
        way,
        marks=[] if name in FAST and way in ("batched", "chunks of 8") else pytest.mark.slow,
    )
    for name in sorted(ENCODER_DECODERS)
    for way in WAYS
]
EVERY = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in sorted(ENCODER_DECODERS)
]


@pytest.mark.parametrize(("architecture", "way"), PAIRS)
def test_engine_equals_transformers(
    architecture: str,
    way: str,
    checkpoint: Callable[[str], Path],
    cases: Callable[[str], list[Case]],
) -> None:
    target = cases(architecture)
    with open_engine(checkpoint(architecture), **WAYS[way]) as llm:
        assert_equal(llm.generate([case.prompt for case in target], PARAMS, use_tqdm=False), target)
        for case in target:
            assert_equal(llm.generate(case.prompt, PARAMS, use_tqdm=False), [case])


@pytest.mark.parametrize("architecture", EVERY)
def test_preempted_requests_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], cases: Callable[[str], list[Case]]
) -> None:
    target = [cases(architecture)[3]] * 4
    settings = {"block_size": 4, "max_num_batched_tokens": 16, "max_model_len": 80}
    preemptions = 0
    for num_blocks in range(40, 82, 3):  # some of these hold several prompts but not their outputs
        with open_engine(
            checkpoint(architecture), **settings, num_gpu_blocks_override=num_blocks
        ) as llm:
            assert_equal(
                llm.generate([case.prompt for case in target], PARAMS, use_tqdm=False), target
            )
            preemptions += llm.core.scheduler.num_preemptions
            check_scheduler(llm.core.scheduler)
    assert preemptions


@pytest.mark.parametrize("architecture", FAST)
def test_sequences_of_one_prompt_share_encoder_kv(
    architecture: str, checkpoint: Callable[[str], Path], cases: Callable[[str], list[Case]]
) -> None:
    case = cases(architecture)[1]
    with open_engine(checkpoint(architecture)) as llm:
        both = PARAMS.clone(n=2, temperature=1e-4)
        assert_equal(llm.generate(case.prompt, both, use_tqdm=False), [case])


@pytest.mark.parametrize(
    "architecture",
    [
        "T5ForConditionalGeneration",
        pytest.param("WhisperForConditionalGeneration", marks=pytest.mark.slow),
    ],
)
def test_engine_process_equals_transformers(
    architecture: str, checkpoint: Callable[[str], Path], cases: Callable[[str], list[Case]]
) -> None:
    target = cases(architecture)

    async def generate(engine: AsyncLLM, index: int, case: Case) -> RequestOutput:
        return [output async for output in engine.generate(case.prompt, PARAMS, str(index))][-1]

    async def generate_all() -> list[RequestOutput]:
        settings: dict[str, Any] = {
            "dtype": "float32",
            "max_model_len": 100,
            "kv_cache_memory_bytes": 1 << 23,
        }
        engine = AsyncLLM(
            str(checkpoint(architecture)), **settings, num_threads=1, log_level="error"
        )
        try:
            return await asyncio.gather(
                *(generate(engine, index, case) for index, case in enumerate(target))
            )
        finally:
            engine.shutdown()

    assert_equal(asyncio.run(generate_all()), target)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(ENCODER_DECODERS))
def test_two_ranks_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], cases: Callable[[str], list[Case]]
) -> None:
    target = cases(architecture)
    ranks = {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "threads",
        "plugins": [THREADS],
    }
    with open_engine(checkpoint(architecture), **ranks) as llm:
        assert_equal(llm.generate([case.prompt for case in target], PARAMS, use_tqdm=False), target)


OTHER_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("T5ForConditionalGeneration", {"feed_forward_proj": "relu"}),
    (
        "T5ForConditionalGeneration",
        {"feed_forward_proj": "gated-silu", "num_decoder_layers": None, "d_kv": 16},
    ),
    ("BartForConditionalGeneration", {"tie_word_embeddings": False, "scale_embedding": False}),
    ("MarianMTModel", {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}),
    (
        "PegasusForConditionalGeneration",
        {"tie_word_embeddings": True, "activation_function": "relu"},
    ),
    ("WhisperForConditionalGeneration", {"tie_word_embeddings": True, "num_mel_bins": 7}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "changes"), OTHER_FORMS, ids=[f"{a}-{min(c)}" for a, c in OTHER_FORMS]
)
def test_encoder_decoder_variants_equal_transformers(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    target = truth(architecture, make_checkpoint(architecture, tmp_path, seed=2, **changes))
    with open_engine(tmp_path) as llm:
        assert_equal(llm.generate([case.prompt for case in target], PARAMS, use_tqdm=False), target)


def test_stored_head_overrides_tied_embedding(tmp_path: Path) -> None:
    """As in Flan-T5's files, whatever the config states about tying."""
    make_checkpoint("T5ForConditionalGeneration", tmp_path, seed=2)
    tensors = load_file(tmp_path / "model.safetensors")
    head = torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(9)) * 0.2
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    target = truth("T5ForConditionalGeneration", tmp_path)
    with open_engine(tmp_path) as llm:
        assert_equal(llm.generate([case.prompt for case in target], PARAMS, use_tqdm=False), target)


@pytest.mark.parametrize("architecture", FAST)
def test_encoder_decoder_memory_plan_reads_no_weights(
    architecture: str, checkpoint: Callable[[str], Path]
) -> None:
    settings = {"model": str(checkpoint(architecture)), "dtype": "float32", "max_model_len": 100}
    plan = memory_plan(*load_from_kwargs(settings))
    assert not plan.obstacle
    assert plan.requests_at_once(100) > 1


def test_encoder_reads_text_prompt(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("BartForConditionalGeneration")
    with open_engine(folder) as llm:
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        prompts = ["in the end", {"prompt_token_ids": tokenizer.encode("in the end")}, TWO]
        text, ids, both = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert text.encoder_prompt == "in the end"
    assert (
        text.encoder_prompt_token_ids
        == ids.encoder_prompt_token_ids
        == both.encoder_prompt_token_ids
    )
    assert (text.prompt, text.prompt_token_ids) == (None, [2])
    assert (both.prompt, both.prompt_token_ids) == ("the", [2, *tokenizer.encode("the")])
    assert text.outputs[0].token_ids == ids.outputs[0].token_ids


TWO: Any = {"encoder_prompt": "in the end", "decoder_prompt": "the"}


def test_decoder_start_tokens_are_read_from_generation_config(tmp_path: Path) -> None:
    folder = make_checkpoint("BartForConditionalGeneration", tmp_path, seed=1)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "forced_bos_token_id": 7}))
    with open_engine(folder) as llm:
        assert llm.generate("hello", PARAMS, use_tqdm=False)[0].prompt_token_ids == [2, 7]


def test_encoder_decoder_disables_prefix_caching(checkpoint: Callable[[str], Path]) -> None:
    with open_engine(checkpoint("T5ForConditionalGeneration"), enable_prefix_caching=True) as llm:
        assert not llm.config.cache.enable_prefix_caching


@pytest.mark.parametrize("architecture", ["PegasusForConditionalGeneration", "MarianMTModel"])
def test_stored_positions_override_sinusoids(architecture: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path / "stored", seed=1)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    rows = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    width = 64
    generator = torch.Generator().manual_seed(5)
    for half in ("encoder", "decoder"):
        tensors[f"model.{half}.embed_positions.weight"] = torch.randn(
            rows, width, generator=generator
        )
    save_file(tensors, file, metadata={"format": "pt"})
    model = (
        getattr(transformers, architecture)
        .from_pretrained(folder, attn_implementation="eager")
        .eval()
    )
    assert torch.equal(
        model.model.decoder.embed_positions.weight, tensors["model.decoder.embed_positions.weight"]
    )
    target = [draw_case(model, *SHAPES[1])]
    with open_engine(folder) as llm:
        assert_equal(llm.generate([case.prompt for case in target], PARAMS, use_tqdm=False), target)


def test_too_few_stored_positions_are_rejected(tmp_path: Path) -> None:
    folder = make_checkpoint("PegasusForConditionalGeneration", tmp_path / "few", seed=1)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.decoder.embed_positions.weight"] = torch.zeros(50, 64)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(
        ModelError,
        match=r"embed_positions\.weight has shape \[50, 64\]; expected at least \[100, 64\]",
    ):
        open_engine(folder)
