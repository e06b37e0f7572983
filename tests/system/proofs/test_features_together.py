"""Four features, each a folder outside of the kernel, alone and together: the tokens are those
without them.

The demo model computes in float32, so that what is equal is equal in every order of sums that
matters here. Depth 2 plans a step while one runs; two ranks split every layer.
"""

from __future__ import annotations

from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.testing.invariants import check_scheduler
from tests.system.proofs.features import drafting, host_tier, remote_prefill

FOLDER = Path(__file__).parent / "features"
DEMO = Path(__file__).parents[3] / "builtin_plugins" / "model_sources" / "demo"
FEATURES = {
    name: str(FOLDER / f"{name}.py")
    for name in ("drafting", "host_tier", "remote_prefill", "low_rank")
}
VOICES = (None, "capitals", "pirate")
TEXTS = (
    "one two three four one two three four one two three",
    "Say hello hello hello.",
    "What is 12 + 30?",
)
SETTINGS: dict[str, Any] = {
    "drafting": {"num_drafts": 4},
    "host_tier": {"host_blocks": 512},
    "low_rank": {"adapters": [f"{v}={DEMO}/adapters/{v}" for v in VOICES if v], "adapter_slots": 2},
}
BASE: dict[str, Any] = {
    "max_model_len": 192,
    "max_num_seqs": 4,
    "dtype": "float32",
    "kv_cache_memory_bytes": 8 << 20,
    "block_size": 8,
    "num_threads": 1,
}
Tokens = list[tuple[int, ...]]


def open_llm(*features: str, **options: Any) -> LLM:
    settings = {key: value for name in features for key, value in SETTINGS.get(name, {}).items()}
    return LLM(plugins=[FEATURES[name] for name in features] or None, **BASE | settings | options)


def half(llm: LLM, kind: type) -> Any:
    """Return the scheduler half of a feature, for what it has counted; plugins are loaded anew for
    every engine.
    """
    extensions = llm.core.scheduler._extensions
    halves = {
        id(unwrap(m).__self__): unwrap(m).__self__
        for slot in ("_attach", "_planned")
        for _, m in getattr(extensions, slot)
    }
    return next(found for found in halves.values() if type(found).__name__ == kind.__name__)


def run(
    llm: LLM, voices: tuple[str | None, ...] = (None,), texts: tuple[str, ...] = TEXTS
) -> Tokens:
    """Return the tokens of every text and voice: greedy, seeded, with penalties and logprobs."""
    prompts = llm.preprocess_chat([[{"role": "user", "content": text}] for text in texts])
    jobs = [(prompt, voice) for prompt in prompts for voice in voices]
    greedy = SamplingParams(temperature=0, max_tokens=24)
    seeded = SamplingParams(temperature=0.8, seed=3, top_k=20, top_p=0.95, max_tokens=24)
    mixed = SamplingParams(
        temperature=0.9,
        seed=5,
        repetition_penalty=1.1,
        presence_penalty=0.3,
        min_tokens=6,
        logprobs=1,
        max_tokens=24,
    )
    chosen = [(greedy, seeded, mixed)[i % 3] for i in range(len(jobs))]
    keywords = {"lora_request": [voice for _, voice in jobs]} if any(voices) else {}
    outputs = llm.generate([prompt for prompt, _ in jobs], chosen, use_tqdm=False, **keywords)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected() -> Tokens:
    """What the model says without any feature."""
    with open_llm() as llm:
        return run(llm)


@pytest.fixture(scope="module")
def voiced() -> Tokens:
    """What each voice says, one engine with nothing but adapters in it."""
    with open_llm("low_rank") as llm:
        return run(llm, VOICES)


DEPTHS = pytest.mark.parametrize("ahead", [False, True], ids=["depth 1", "depth 2"])


@DEPTHS
@pytest.mark.parametrize("tight", [False, True], ids=["room", "tight"])
def test_draft_tokens_change_no_token(expected: Tokens, ahead: bool, tight: bool) -> None:
    extra = {"num_gpu_blocks_override": 40, "kv_cache_memory_bytes": None} if tight else {}
    with open_llm("drafting", async_scheduling=ahead, **extra) as llm:
        assert run(llm) == expected
        drafts = half(llm, drafting.DraftScheduler)
        assert drafts.num_planned > 20
        assert drafts.num_accepted > 3
        check_scheduler(llm.core.scheduler)


@DEPTHS
def test_accepted_draft_tokens_save_steps(ahead: bool) -> None:
    same = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, detokenize=False)
    with open_llm(async_scheduling=ahead) as llm:
        want = (
            llm.generate(["hello hello hello hello"], same, use_tqdm=False)[0].outputs[0].token_ids
        )
        alone = llm.core.num_steps
    with open_llm("drafting", async_scheduling=ahead) as llm:
        assert (
            llm.generate(["hello hello hello hello"], same, use_tqdm=False)[0].outputs[0].token_ids
            == want
        )
        assert llm.core.num_steps <= alone - half(llm, drafting.DraftScheduler).num_accepted + 4
        assert llm.core.num_steps < 0.8 * alone


@DEPTHS
def test_evicted_blocks_return_from_host_memory(expected: Tokens, ahead: bool) -> None:
    with open_llm("host_tier", async_scheduling=ahead) as llm:
        assert run(llm) == expected
        assert llm.reset_prefix_cache()
        assert run(llm) == expected
        directory = half(llm, host_tier.Directory)
        assert directory.num_stored > 5
        assert directory.num_loaded > 5
        check_scheduler(llm.core.scheduler)


@DEPTHS
def test_small_windowed_cache_spills_into_host_memory(ahead: bool) -> None:
    kw: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "max_num_seqs": 4,
        "dtype": "float32",
        "max_model_len": 128,
        "block_size": 8,
        "async_scheduling": ahead,
    }
    own = ["core.testing.fake_model", str(FOLDER / "windowed.py")]
    window = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    prompts = [[2 + (i * 5 + j * j) % 60 for j in range(70)] for i in range(8)]
    with LLM("windowed:", plugins=own, kv_cache_memory_bytes=4 << 20, **kw) as alone:
        want = [o.outputs[0].token_ids for o in alone.generate(prompts, window, use_tqdm=False)]
    plugins = [*own, FEATURES["host_tier"], FEATURES["drafting"]]
    with LLM(
        "windowed:",
        plugins=plugins,
        num_gpu_blocks_override=40,
        host_blocks=500,
        num_drafts=3,
        **kw,
    ) as llm:
        for turn in range(3):
            outputs = llm.generate(prompts, window, use_tqdm=False)
            assert [o.outputs[0].token_ids for o in outputs] == want
            cached = [o.num_cached_tokens for o in outputs]
            assert turn == 0 or min(cached) >= 56, (
                cached
            )  # of 70 tokens, those of whole blocks, groups agreed
        check_scheduler(llm.core.scheduler)


@DEPTHS
def test_adapters_and_base_model_share_batches(
    expected: Tokens, voiced: Tokens, ahead: bool
) -> None:
    texts = len(TEXTS)
    assert [voiced[3 * i] for i in range(0, texts, 3)] == [expected[i] for i in range(0, texts, 3)]
    assert len({voiced[0], voiced[1], voiced[2]}) == 3
    with open_llm(
        "low_rank", async_scheduling=ahead, adapter_slots=1
    ) as llm:  # they take turns in one slot
        assert run(llm, VOICES) == voiced
        assert run(llm, VOICES) == voiced


@DEPTHS
def test_remote_prefill_gives_the_same_tokens(
    expected: Tokens, ahead: bool, tmp_path: Path
) -> None:
    crossing = {"hand_folder": str(tmp_path), "async_scheduling": ahead}
    with open_llm("remote_prefill", hand_role="gives", **crossing) as gives:
        prompts = gives.preprocess_chat([[{"role": "user", "content": text}] for text in TEXTS])
        gives.generate(prompts, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        while gives.core.has_work or gives.core.scheduler.kv.usage:
            gives.core.step()
        assert half(gives, remote_prefill.Planner).num_crossed == len(TEXTS)
    with open_llm("remote_prefill", hand_role="takes", **crossing) as takes:
        assert run(takes) == expected
        assert half(takes, remote_prefill.Planner).num_crossed == len(TEXTS)
        check_scheduler(takes.core.scheduler)


@pytest.mark.slow
def test_three_features_on_two_ranks(voiced: Tokens) -> None:
    with open_llm(
        "drafting", "host_tier", "low_rank", async_scheduling=True, tensor_parallel_size=2
    ) as llm:
        assert run(llm, VOICES) == voiced
        assert half(llm, drafting.DraftScheduler).num_planned > 20


@pytest.mark.parametrize(
    ("ahead", "ranks"),
    [
        (False, 1),
        (True, 1),
        pytest.param(True, 2, marks=pytest.mark.slow),
        pytest.param(False, 2, marks=pytest.mark.slow),
    ],
)
def test_all_features_together(voiced: Tokens, ahead: bool, ranks: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "hand_folder": str(tmp_path),
        "async_scheduling": ahead,
        "tensor_parallel_size": ranks,
    }
    with open_llm(*FEATURES, hand_role="gives", **options) as llm:
        assert run(llm, VOICES) == voiced
    with open_llm(*FEATURES, hand_role="takes", **options) as llm:
        assert run(llm, VOICES) == voiced
        assert llm.reset_prefix_cache()
        assert run(llm, VOICES) == voiced
        assert half(llm, drafting.DraftScheduler).num_planned > 20
        assert half(llm, remote_prefill.Planner).num_crossed > 0
        check_scheduler(llm.core.scheduler)
