"""Speculative decoding: what looking for guesses costs, what they cost the scheduler, and how much
faster tokens come.

`costs` needs no model: microseconds of a look in a text of 8,000 tokens to which one is added each
time, which are drawn or the same hundred again and again, and of a step of the scheduler for 64
requests with guesses, of which half hold, and without. `speed` runs two engines in one process in
turns, one that guesses and one that does not, or guesses as `--beside` says, on the same prompts,
greedy or at `--temperature`: tokens in a second, the median of the rounds, and the median of the
rounds' ratios. With `--schemas`, each request has a JSON schema of its own to keep to, and its
answer is read. With `--questions`, held-out questions to the demo model are asked instead, as many
of each of six skills, other ones in each round, and answers end where they end.

Run: python benchmarks/speculation/bench_speculation.py costs
     python benchmarks/speculation/bench_speculation.py speed [--config JSON] [--model MODEL]
     [--prompt TEXT] [--streams N ...] python benchmarks/speculation/bench_speculation.py speed
     --schemas --streams 100 PYTHONPATH=. python benchmarks/speculation/bench_speculation.py speed
     --questions 4 --config '{"method": "suffix", "model": OUTPUTS}' python
     benchmarks/speculation/bench_speculation.py speed --streams 1 --temperature 1 --prompt "Tell me
     a story." \
         --beside '{"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 3}' \
         --config '{"method": "draft_model", "model": DRAFT, "speculative_token_tree": "[(0,), (1,),
         (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"}'
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from builtin_plugins.speculators.messages import NAME, Report
from builtin_plugins.speculators.ngram import NGram
from builtin_plugins.speculators.scheduling import Asker
from builtin_plugins.speculators.suffix import Suffix
from core import LLM, RequestOutput, SamplingParams
from core.api import (
    DraftRow,
    EngineConfig,
    EngineRequest,
    SpeculativeConfig,
    StructuredOutputsParams,
)
from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from core.scheduler import Scheduler, SchedulerLimits
from core.step import NewRow, StepResult

CONTEXT = 8000
PERIOD = 100
ROWS = 64
MOST = 4
SKILLS = ("arithmetic", "json", "lists", "engine", "tools", "rules")
WORDS = ["red", "green", "blue", "yellow"]
REPEATING = "Repeat this: one two three four five six seven eight nine ten. " * 4


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("costs", "speed"))
    parser.add_argument(
        "--config", type=json.loads, default={"method": "ngram", "num_speculative_tokens": 5}
    )
    parser.add_argument(
        "--beside",
        type=json.loads,
        default=None,
        help="how the other engine guesses; default: it does not",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default=None, help="default: the demo model")
    parser.add_argument(
        "--load-format",
        default="auto",
        help="dummy: random weights, so small that one token is said again and again",
    )
    parser.add_argument("--prompt", default=REPEATING)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument(
        "--schemas", action="store_true", help="each request has a JSON schema of its own"
    )
    parser.add_argument("--questions", type=int, default=0, help="of each skill, in each round")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.what == "speed":
        _speed(arguments)
        return
    for kind in (NGram, Suffix):
        news, again = (_look_us(kind, repeating=repeating) for repeating in (False, True))
        print(
            f"{kind.__name__}: {news:.1f} us a request and step at {CONTEXT} tokens, {again:.1f} "
            "if they repeat themselves"
        )
    plain, guessing = (_step_us(guessing=guessing) for guessing in (False, True))
    print(
        f"scheduler, {ROWS} requests: {plain:.1f} us a step, with guesses {guessing:.1f}: "
        f"{guessing / plain:.2f} times"
    )


def _look_us(kind: Any, *, repeating: bool) -> float:
    """Return the median cost of a look behind a new token, the text's index being there."""
    draw = random.Random(0)
    owner = NewRow(0, "r", [], 0, SamplingParams(), 0, (), [])
    finder = kind(EngineConfig(), SpeculativeConfig(method="x", num_speculative_tokens=5), None)
    tokens = np.array([draw.randrange(300) for _ in range(CONTEXT)])
    if repeating:
        tokens = np.resize(tokens[:PERIOD], CONTEXT)
    times = []
    for end in range(CONTEXT // 2, CONTEXT):
        begun = time.perf_counter()
        finder.drafts([DraftRow(0, owner, tokens[:end], 5)])
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times[-1000:])


def _step_us(*, guessing: bool) -> float:
    """Return the median cost of planning a step of many requests and reading its result."""
    layout = plan_layout(
        [LayerKV("0", FullAttention(8, 64, "float32"))],
        block_size=64,
        memory_bytes=0,
        num_blocks=40 * ROWS,
        max_model_len=2048,
        max_num_seqs=ROWS,
    )
    asker = [Asker(ROWS, MOST)] if guessing else []
    scheduler = Scheduler(SchedulerLimits(8192, ROWS, 2048), KVManager(layout), extensions=asker)
    for i in range(ROWS):
        scheduler.add(
            EngineRequest(
                request_id=str(i),
                prompt_token_ids=[1] * 8,
                sampling=SamplingParams(),
                seed=0,
                max_tokens=1900,
            )
        )
    rows = list(range(ROWS))
    times = []
    for _ in range(300):
        begun = time.perf_counter()
        plan = scheduler.schedule()
        took = time.perf_counter() - begun
        assert plan is not None
        sampled = [*plan.steady, *(plan.rows[i] for i in plan.samples)]
        accepted = [1 + guessed // 2 for guessed in plan.guesses]
        report = Report.of(rows, [MOST] * ROWS, [MOST // 2] * ROWS, rows, [MOST] * ROWS)
        told = {NAME: [msgspec.msgpack.encode(report)]} if guessing else {}
        result = StepResult(
            plan.step,
            sampled,
            [5] * (sum(accepted) or len(sampled)),
            accepted=accepted,
            payloads=told,
        )
        begun = time.perf_counter()
        scheduler.update(result)
        times.append(took + time.perf_counter() - begun)
    return 1e6 * statistics.median(times[20:])


def _speed(arguments: argparse.Namespace) -> None:
    common: dict[str, Any] = {
        "max_num_seqs": max(arguments.streams),
        "max_model_len": 1024,
        "log_level": "error",
    }
    common |= {"load_format": arguments.load_format} | (
        {"model": arguments.model} if arguments.model else {}
    )
    with (
        LLM(**common, speculative_config=arguments.beside) as plain,
        LLM(**common, speculative_config=arguments.config) as guessing,
    ):
        for streams in arguments.streams:
            rounds = _rounds(arguments, plain, streams)
            figures: list[tuple[float, float]] = []
            counts = ["", ""]
            for turn in range(arguments.rounds + 1):
                prompts, params = rounds[turn % len(rounds)]
                speeds = [0.0, 0.0]
                for which in (
                    (0, 1) if turn % 2 else (1, 0)
                ):  # whoever comes second may find the machine otherwise
                    llm = (plain, guessing)[which]
                    outputs = []
                    begun = time.perf_counter()
                    for at in range(0, len(prompts), streams):
                        outputs += llm.generate(
                            prompts[at : at + streams], params[at : at + streams], use_tqdm=False
                        )
                    took = time.perf_counter() - begun
                    made = sum(len(output.outputs[0].token_ids) for output in outputs)
                    counts[which], speeds[which] = _counts(outputs), made / took
                if turn:  # the first one warms up
                    figures.append((speeds[0], speeds[1]))
            without, speed = (
                statistics.median(pair[which] for pair in figures) for which in (0, 1)
            )
            ratios = statistics.quantiles(
                [pair[1] / pair[0] for pair in figures], n=4, method="inclusive"
            )
            print(
                f"{streams} streams: {without:.0f} tokens/s ({counts[0]}), {speed:.0f} "
                f"({counts[1]} of {made} tokens): ",
                end="",
            )
            print(f"{ratios[1]:.2f} times (quartiles {ratios[0]:.2f} and {ratios[2]:.2f})")
            if arguments.schemas:
                held = sum(
                    _holds(output.outputs[0].text, each)
                    for output, each in zip(outputs, params, strict=True)
                )
                print(f"{held} of {streams} answers hold their schema")


def _counts(outputs: Sequence[RequestOutput]) -> str:
    """Say what came of guesses."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    drafts, guessed, right = (
        sum(o.counts.get(f"spec_decode_num_{name}", 0) for o in outputs) for name in names
    )
    if not drafts:
        return "no guesses"
    return f"{guessed / drafts:.1f} guesses and {right / drafts:.2f} right ones a step that guesses, {right:.0f} right"


def _rounds(
    arguments: argparse.Namespace, llm: LLM, streams: int
) -> list[tuple[Any, list[SamplingParams]]]:
    """Return prompts and parameters of each round, of which there may be more than of these; they
    begin again then.
    """
    if not arguments.questions:
        texts, params = _requests(arguments, streams)
        if arguments.model is not None:
            return [(texts, params)]
        return [
            (llm.preprocess_chat([[{"role": "user", "content": text}] for text in texts]), params)
        ]
    # lazy: only these need the repository's examples
    from examples.demo_model.evaluate import options
    from examples.demo_model.mix import evaluation_items

    num_rounds = arguments.rounds + 1
    common = {"temperature": arguments.temperature, "seed": 7}
    items = [list(evaluation_items(skill, 7, arguments.questions * num_rounds)) for skill in SKILLS]
    every = [item for own in zip(*items, strict=True) for item in own]
    prompts = [llm.preprocess_chat(item.messages, **options(item))[0] for item in every]
    size = len(prompts) // num_rounds
    params = [SamplingParams(**common, max_tokens=200, detokenize=False)] * size
    return [(prompts[at * size : (at + 1) * size], params) for at in range(num_rounds)]


def _requests(arguments: argparse.Namespace, count: int) -> tuple[list[str], list[SamplingParams]]:
    """Return what is asked, and how."""
    common: dict[str, Any] = {
        "temperature": arguments.temperature,
        "seed": 7,
        "max_tokens": arguments.tokens,
    }
    if not arguments.schemas:
        return [arguments.prompt] * count, [
            SamplingParams(**common, ignore_eos=True, detokenize=False)
        ] * count
    texts = []
    params = []
    for i in range(count):
        words = {f"{word}_{i}": WORDS for word in WORDS[: 1 + i % len(WORDS)]}
        schema = {
            "type": "object",
            "properties": {name: {"enum": values} for name, values in words.items()},
            "required": list(words),
            "additionalProperties": False,
        }
        form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
        texts.append(f"Answer in JSON: {json.dumps(dict.fromkeys(words, WORDS[0]))}")
        params.append(SamplingParams(**common, structured_outputs=form))
    return texts, params


def _holds(text: str, params: SamplingParams) -> bool:
    """Say whether an answer is what was asked for."""
    schema: Any = params.structured_outputs.json  # type: ignore[union-attr]  # each has one
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return sorted(answer) == sorted(schema["required"]) and all(
        value in WORDS for value in answer.values()
    )


if __name__ == "__main__":
    main()
