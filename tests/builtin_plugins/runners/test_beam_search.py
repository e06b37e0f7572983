"""Beam search matches transformers, with several prompts at once."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from builtin_plugins.runners.api import BeamSearch
from core import LLM, BeamSearchParams
from core.errors import InvalidRequest
from core.testing.checkpoints import make_checkpoint
from core.types.outputs import Logprob


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_checkpoint(
        "LlamaForCausalLM", tmp_path_factory.mktemp("beams"), eos_token_id=[2, 17, 40, 55]
    )


PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [3]]


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), max_model_len=64, num_gpu_blocks_override=256, dtype="float32") as engine:
        yield engine


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_beams_match_transformers(llm, folder, width, penalty):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    params = BeamSearchParams(
        beam_width=width, max_tokens=12, length_penalty=penalty, include_stop_str_in_output=True
    )
    found = llm.beam_search([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    for prompt, output in zip(PROMPTS, found, strict=True):
        expected = model.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=12,
            do_sample=False,
            length_penalty=penalty,
            early_stopping=False,
        )
        pad = model.generation_config.pad_token_id
        assert [s.tokens for s in output.sequences] == [
            _without(row.tolist(), len(prompt), pad) for row in expected
        ]


def _without(row, start, pad):
    while len(row) > start + 1 and row[-1] == pad:
        row.pop()
    return row


def test_width_one_is_greedy(llm):
    from core import SamplingParams

    greedy = llm.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    found = llm.beam_search(PROMPTS, BeamSearchParams(1, 8, ignore_eos=True), concurrency_limit=2)
    assert [f.sequences[0].tokens for f in found] == [
        p + o.outputs[0].token_ids for p, o in zip(PROMPTS, greedy, strict=True)
    ]
    assert found[0].sequences[0].finish_reason == "length"
    total = sum(
        each[t].logprob
        for each, t in zip(
            found[0].sequences[0].logprobs, greedy[0].outputs[0].token_ids, strict=True
        )
    )
    assert math.isclose(found[0].sequences[0].cum_logprob, total, rel_tol=1e-5)


def test_width_above_max_logprobs_is_refused(llm):
    with pytest.raises(InvalidRequest, match="max_logprobs=22"):
        llm.beam_search("a", BeamSearchParams(11, 4))
    with pytest.raises(InvalidRequest, match="beam_width: must be 1 to 64, not 0"):
        BeamSearchParams(0, 4)


def logprobs(**tokens):
    return {ord(name): Logprob(math.log(p)) for name, p in tokens.items()}


def test_search_continues_while_a_running_beam_may_win():
    search = BeamSearch([1], BeamSearchParams(2, 9), {ord("e")}, max_len=99)
    search.advance(
        [logprobs(a=0.6, b=0.2, e=0.15, c=0.05)]
    )  # the end token ranks third, so no beam ends
    assert [beam.tokens[1:] for beam in search.running] == [[ord("a")], [ord("b")]]
    search.advance(
        [logprobs(e=0.9, a=0.1), logprobs(e=0.35, a=0.65)]
    )  # one end token ranks in the top two
    assert [beam.tokens[1:] for beam in search.running] == [
        [ord("b"), ord("a")],
        [ord("a"), ord("a")],
    ]
    search.advance([logprobs(e=0.9, a=0.1), logprobs(a=0.9, e=0.1)])
    assert search.running == []  # two beams are finished and no running one can be better
    assert [beam.tokens for beam in search.best_sequences()] == [
        [1, ord("a")],
        [1, ord("b"), ord("a")],
    ]
    assert {beam.finish_reason for beam in search.best_sequences()} == {"stop"}


def test_context_length_ends_the_search():
    search = BeamSearch([1, 2], BeamSearchParams(1, 9), (), max_len=3)
    search.advance([logprobs(a=1.0)])
    assert (search.running, [b.tokens for b in search.best_sequences()]) == ([], [[1, 2, ord("a")]])
