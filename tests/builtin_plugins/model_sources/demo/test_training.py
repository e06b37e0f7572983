"""Training learns, resumes, and writes what transformers and the engine load."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from core import LLM, SamplingParams
from examples.demo_model.compute import compiled
from examples.demo_model.layout import IGNORED, make_layout, plain_row
from examples.demo_model.mix import training_groups
from examples.demo_model.model import DemoModel, Shape, load_model, save_model
from examples.demo_model.muon import orthogonal
from examples.demo_model.tokenizer import train_tokenizer
from examples.demo_model.train import CHECKPOINT, Plan, rate, step_rows, train
from examples.demo_model.workers import Workers, batches_of, step_gradients
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
TINY = Shape(
    vocab_size=400,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
)
PLAN = Plan(steps=6, step_items=6, warm_up=2)


@pytest.fixture(autouse=True, scope="module")
def quick_tokenizer():
    """A tokenizer of a hundred conversations: fifteen thousand take longer than a run."""
    few = partial(train_tokenizer, steps=2, step_items=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("examples.demo_model.train.train_tokenizer", few)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(folder, PLAN, TINY, quiet=True)


def weights(folder):
    return load_model(folder / "model").state_dict()


@pytest.mark.slow
def test_resumed_training_equals_uninterrupted_training(trained, tmp_path, monkeypatch):
    folder, loss = trained
    monkeypatch.setattr("examples.demo_model.train.rate", lambda plan, step: rate(PLAN, step))
    train(tmp_path, replace(PLAN, steps=3), TINY, quiet=True)
    assert train(tmp_path, PLAN, TINY, quiet=True) == pytest.approx(loss, rel=1e-6)
    assert all(
        torch.equal(value, weights(tmp_path)[name]) for name, value in weights(folder).items()
    )


def test_finished_run_is_not_trained_again(trained):
    folder, _ = trained
    before = weights(folder)
    train(folder, PLAN, TINY, quiet=True)
    assert all(torch.equal(value, before[name]) for name, value in weights(folder).items())
    assert (folder / CHECKPOINT).exists()


@pytest.mark.slow
def test_two_processes_match_one(trained, tmp_path):
    _, loss = trained
    assert train(tmp_path, PLAN, TINY, threads=2, quiet=True) == pytest.approx(loss, rel=1e-2)


def test_killed_worker_raises(trained):
    model = DemoModel(TINY)
    workers = Workers(
        model, partial(step_rows, str(trained[0] / "model"), PLAN), begin=0, count=2, compiles=False
    )
    children = multiprocessing.active_children()
    assert len(children) == 2
    children[0].kill()
    with pytest.raises(RuntimeError, match="has died"):
        workers.gradients()
    workers.close()


def test_training_lowers_the_loss(tmp_path):
    first = train(tmp_path / "one", replace(PLAN, steps=1, warm_up=1), TINY, quiet=True)
    last = train(tmp_path / "more", replace(PLAN, steps=25, warm_up=1), TINY, quiet=True)
    assert last < first - 0.5


def test_learning_rate_warms_up_and_decays():
    plan = Plan(steps=100, warm_up=10, decay_from=0.5)
    rates = [rate(plan, step) for step in range(101)]
    assert rates[0] == 0.1
    assert rates[9:51] == [1.0] * 42
    assert rates[75] == 0.5
    assert rates[100] == 0.0


def test_muon_updates_are_orthogonal():
    matrices = orthogonal(torch.randn(3, 24, 8, generator=torch.Generator().manual_seed(0)))
    singular = torch.linalg.svdvals(matrices.float())
    assert singular.min() > 0.6
    assert singular.max() < 1.3


def test_batched_conversations_are_independent():
    model = DemoModel(TINY)
    model.initialise(3)
    generator = torch.Generator().manual_seed(1)
    lengths = [3, 4, 9, 10, 30]
    parts = [torch.randint(0, 400, (length,), generator=generator) for length in lengths]
    together = model(torch.cat(parts), make_layout([plain_row(part.tolist()) for part in parts]))
    alone = torch.cat([model(part, make_layout([plain_row(part.tolist())])) for part in parts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_shared_prefix_gives_the_gradients_of_separate_rows(small_chat):
    model = DemoModel(replace(TINY, vocab_size=512))
    model.initialise(4)
    groups = training_groups(0, 1, 12)
    assert any(len(group) > 1 for group in groups)

    def learnt(rows):
        model.zero_grad()
        loss, tokens = step_gradients(model, rows)
        return loss, tokens, [parameter.grad.clone() for parameter in model.parameters()]

    loss, tokens, gradients = learnt([small_chat.row(group) for group in groups])
    alone, more_tokens, expected = learnt(
        [small_chat.row([item]) for group in groups for item in group]
    )
    assert tokens < 0.9 * more_tokens
    assert loss == pytest.approx(alone, rel=1e-3)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=2e-3)


def test_row_holds_a_branch_per_conversation(small_chat):
    items = next(group for group in training_groups(0, 1, 60) if len(group) == 3)
    row = small_chat.row(items)
    begun = row.branches.count(0)
    for branch, item in enumerate(items, 1):
        mine = [at for at, number in enumerate(row.branches) if number in (0, branch)]
        ids, learnt = small_chat.encode(item)
        assert [row.ids[at] for at in mine] == ids[:-1]
        assert [row.positions[at] for at in mine] == list(range(len(ids) - 1))
        targets = [
            token if is_answer else IGNORED
            for token, is_answer in zip(ids[1:], learnt[1:], strict=True)
        ]
        assert [row.targets[at] for at in mine] == targets
    assert begun > 30


def test_batches_have_even_sizes_and_all_learnt_tokens(small_chat):
    rows = [small_chat.row(group) for group in training_groups(0, 2, 60)]
    batches = list(batches_of(rows, 2))
    assert len(batches) % 2 == 0
    sizes = [batch.ids.numel() for batch in batches]
    assert max(sizes) < 1.5 * min(sizes)
    targets = [target for row in rows for target in row.targets if target != IGNORED]
    assert sorted(t for batch in batches for t in batch.targets.tolist() if t != IGNORED) == sorted(
        targets
    )
    assert sum(batch.count for batch in batches) == len(targets)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of torch.compile itself
def test_compiled_functions_match_plain_ones(small_chat):
    if shutil.which("c++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    model = DemoModel(replace(TINY, vocab_size=512))
    model.initialise(6)
    rows = [small_chat.row(group) for group in training_groups(0, 1, 6)]
    plain, _ = step_gradients(model, rows)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    assert step_gradients(model, rows, compiled())[0] == pytest.approx(plain, rel=1e-3)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0.1, atol=2e-3)


@pytest.mark.parametrize("length", [1, 40, 250])
def test_transformers_matches_the_saved_model(tmp_path, length):
    model = DemoModel(replace(TINY, rope_theta=5000.0))
    model.initialise(5)
    save_model(model, tmp_path, {"eos_token_id": 1, "pad_token_id": 0})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, 400, (length,), generator=torch.Generator().manual_seed(2))
    ours = load_model(tmp_path)
    with torch.inference_mode():
        mine = ours.logits(ours(ids, make_layout([plain_row([0] * length)])))
        torch.testing.assert_close(mine, theirs(ids[None]).logits[0], rtol=1e-3, atol=1e-4)


def test_transformers_and_engine_load_the_trained_model(trained):
    folder = trained[0] / "model"
    messages = [{"role": "user", "content": "Hello"}]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with LLM(str(folder), dtype="float32") as llm:
        output = llm.chat(messages, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0]
        assert list(output.prompt_token_ids) == prompt
        assert len(output.outputs[0].token_ids) <= 4


@pytest.mark.slow
def test_smoke_run_learns(tmp_path):
    command = [sys.executable, "-m", "examples.demo_model.train", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    losses = [float(part.split(",")[0]) for part in done.stderr.split("loss=")[1:]]
    assert losses[-1] < losses[0] / 2
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 16 << 20
