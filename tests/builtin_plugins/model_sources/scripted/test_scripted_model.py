"""The scripted model, driven like by a runner, with an attention backend that reads nothing."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builtin_plugins.model_sources.scripted.model import scripted_architecture
from builtin_plugins.model_sources.scripted.script import Answer, ScriptedConfig
from builtin_plugins.model_sources.scripted.tokenizer import END_OF_TURN
from core.api import ModelError
from core.api.models import ForwardBatch

MAX_LEN = 64


class ZeroAttention:
    def __init__(self, value=0.0):
        self.value = value
        self.num_calls = 0

    def attend(self, params, query, key, value, cache, plan):
        self.num_calls += 1
        return torch.full_like(query, self.value)


class NoReadBack(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        assert "_local_scalar_dense" not in name, "a device value was read back"
        assert "nonzero" not in name, "a device value decided a shape"
        return func(*args, **(kwargs or {}))


def build(attention=None, **config):
    spec = scripted_architecture(ScriptedConfig(**config))
    model = spec.build(SimpleNamespace(dtype=torch.float32, attention=attention or ZeroAttention()))
    model.bind_kv([torch.zeros(1)])
    return model


def step(model, rows):
    """Run (row, tokens, prompt_len, start, count) and return the logits of every token."""
    history = torch.zeros(8, MAX_LEN, dtype=torch.int64)
    for row, tokens, *_ in rows:
        history[row, : len(tokens)] = torch.tensor(tokens)
    ids = torch.tensor(
        [t for _, tokens, _, start, count in rows for t in tokens[start : start + count]]
    )
    positions = torch.tensor([p for *_, start, count in rows for p in range(start, start + count)])
    batch = ForwardBatch(
        ids,
        positions,
        [None],
        [r[0] for r in rows],
        [r[3] for r in rows],
        [r[4] for r in rows],
        [r[2] for r in rows],
        history,
    )
    with NoReadBack():
        return model.logits(model(batch))


def generate(model, prompt, row=0, limit=40):
    tokens = list(prompt)
    while len(tokens) < limit:
        logits = step(model, [(row, tokens, len(prompt), len(tokens) - 1, 1)])
        tokens.append(int(logits[0].argmax()))
        if tokens[-1] == END_OF_TURN:
            break
    return tokens[len(prompt) :]


def test_model_repeats_the_prompt_and_ends():
    assert generate(build(), list(b"hello")) == [*b"hello", END_OF_TURN]


def test_chunked_prefill_gives_identical_logits():
    model = build()
    prompt = list(b"hello")
    whole = step(model, [(0, prompt, 5, 0, 5)])
    rest = torch.cat([step(model, [(0, prompt, 5, 0, 2)]), step(model, [(0, prompt, 5, 2, 3)])])
    assert torch.equal(whole, rest)
    assert whole.argmax(-1).tolist() == [*b"ello", *b"h"]


def test_recomputed_request_gives_identical_tokens():
    model = build()
    tokens = list(b"hellohe")
    assert step(model, [(3, tokens, 5, 0, 7)]).argmax(-1).tolist()[-3:] == list(b"hel")


def test_rows_are_independent():
    model = build()
    logits = step(model, [(2, list(b"ab"), 2, 1, 1), (0, list(b"cdc"), 2, 2, 1)])
    assert logits.argmax(-1).tolist() == list(b"ad")


def test_reused_row_gives_the_new_reply():
    model = build()
    assert generate(model, list(b"one"), row=1)[:3] == list(b"one")
    assert generate(model, list(b"two"), row=1)[:3] == list(b"two")


def test_ignored_end_token_repeats_the_reply():
    model = build()
    tokens = list(b"abab")
    tokens = [*b"ab", *b"ab", END_OF_TURN]
    assert step(model, [(0, tokens, 2, 4, 1)]).argmax(-1).tolist() == list(b"a")


def test_logit_bias_overrides_the_scripted_token():
    logits = step(build(), [(0, list(b"ab"), 2, 1, 1)])[0]
    assert torch.softmax(logits, -1)[97] == 1.0
    logits[98] += 100
    assert logits.argmax() == 98


def test_failing_token_has_nan_logits_in_its_row_only():
    model = build(fail_at_token=2, answers=(Answer("fine", prompt="cd"),))
    logits = step(model, [(0, list(b"ab"), 2, 1, 1), (1, list(b"aba"), 2, 2, 1)])
    assert torch.isfinite(logits[0]).all()
    assert torch.isnan(logits[1]).all()


def test_single_answer_can_fail():
    model = build(answers=(Answer("xyz", prompt="ab", fail_at_token=1),))
    logits = step(model, [(0, list(b"ab"), 2, 1, 1), (1, list(b"cd"), 2, 1, 1)])
    assert torch.isnan(logits[0]).all()
    assert logits[1].argmax() == ord("c")


def test_unwritten_cache_gives_nan_logits():
    attention = ZeroAttention(float("nan"))
    logits = step(build(attention), [(0, list(b"ab"), 2, 1, 1)])
    assert attention.num_calls == 1
    assert torch.isnan(logits).all()


def test_tokens_per_second_is_limited():
    model = build(tokens_per_second=200)
    started = time.monotonic()
    generate(model, list(b"0123456789"))
    assert time.monotonic() - started >= 10 / 200


def test_weights_are_rejected():
    with pytest.raises(ModelError, match="has no weights"):
        build().load_weights([("w", torch.zeros(1))])


def test_foreign_configuration_is_rejected():
    with pytest.raises(ModelError, match="Use scripted:"):
        scripted_architecture(SimpleNamespace())
