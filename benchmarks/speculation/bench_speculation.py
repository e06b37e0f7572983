"""Speculative decoding: cost of drafting, cost in the scheduler, and speedup.

`costs` needs no model: microseconds of one draft lookup in a text of 8,000 tokens (random, or
repeated) and of a scheduler step for 64 requests with and without drafts, half of them accepted.
`speed` runs two engines alternately in one process, with and without drafts (or with those of
`--baseline`), on the same prompts: tokens per second and the median of ratios. `--schemas` gives
each request its own JSON schema. `--questions` uses held-out questions to the demo model, N of each
of six skills.

Run: python benchmarks/speculation/bench_speculation.py costs

python benchmarks/speculation/bench_speculation.py speed [--config JSON] [--model MODEL] [--prompt
TEXT] [--streams N ...] [--schemas] [--temperature T]

PYTHONPATH=. python benchmarks/speculation/bench_speculation.py speed --questions 4 --config
'{"method": "suffix", "model": OUTPUTS}'
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

from builtin_plugins.features.speculation.messages import NAME, Report
from builtin_plugins.features.speculation.scheduling import SpeculationScheduler
from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig
from builtin_plugins.speculators.ngram import NGram
from builtin_plugins.speculators.suffix import Suffix
from core import LLM, RequestOutput, SamplingParams
from core.api import EngineConfig
from core.api.execution import EngineRequest
from core.api.sampling import StructuredOutputsParams
from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from core.scheduler import Scheduler, SchedulerLimits
from core.step import NewRow, StepResult

CONTEXT = 8000
PERIOD = 100
ROWS = 64
MAX_DRAFT_TOKENS = 4
SKILLS = ("arithmetic", "json", "lists", "engine", "tools", "rules")
WORDS = ["red", "green", "blue", "yellow"]
REPEATING = "Repeat this: one two three four five six seven eight nine ten. " * 4


def main() -> None:
    """Measure the parts of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("costs", "speed"))
    parser.add_argument(
        "--config", type=json.loads, default={"method": "ngram", "num_speculative_tokens": 5}
    )
    parser.add_argument(
        "--baseline",
        type=json.loads,
        default=None,
        help="speculative config of the baseline engine; default: none",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default=None, help="default: the demo model")
    parser.add_argument(
        "--load-format",
        default="auto",
        help="dummy: random weights, so small that one token repeats",
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
    plain, drafting = (_step_us(drafting=drafting) for drafting in (False, True))
    print(
        f"scheduler, {ROWS} requests: {plain:.1f} us a step, with drafts {drafting:.1f}: "
        f"{drafting / plain:.2f} times"
    )


def _look_us(kind: Any, *, repeating: bool) -> float:
    """Return the median microseconds of a lookup after a new token."""
    draw = random.Random(0)
    owner = NewRow(0, "r", [], 0, SamplingParams(), 0, (), [])
    finder = kind(EngineConfig(), SpeculativeConfig(method="x", num_speculative_tokens=5), None)
    tokens = np.array([draw.randrange(300) for _ in range(CONTEXT)])
    if repeating:
        tokens = np.resize(tokens[:PERIOD], CONTEXT)
    times = []
    for end in range(CONTEXT // 2, CONTEXT):
        begun = time.perf_counter()
        finder.propose([DraftRow(0, owner, tokens[:end], 5)])
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times[-1000:])


def _step_us(*, drafting: bool) -> float:
    """Return the median microseconds of planning a step and reading its result."""
    layout = plan_layout(
        [LayerKV("0", FullAttention(8, 64, "float32"))],
        block_size=64,
        memory_bytes=0,
        num_blocks=40 * ROWS,
        max_model_len=2048,
        max_num_seqs=ROWS,
    )
    extensions: list[Any] = [SpeculationScheduler(ROWS, MAX_DRAFT_TOKENS)] if drafting else []
    scheduler = Scheduler(
        SchedulerLimits(8192, ROWS, 2048), KVManager(layout), extensions=extensions
    )
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
        sampled = [*plan.decode_rows, *(plan.rows[i] for i in plan.samples)]
        accepted = [1 + num_drafted // 2 for num_drafted in plan.num_draft_tokens]
        report = Report.of(
            rows,
            [MAX_DRAFT_TOKENS] * ROWS,
            [MAX_DRAFT_TOKENS // 2] * ROWS,
            rows,
            [MAX_DRAFT_TOKENS] * ROWS,
        )
        payloads = {NAME: [msgspec.msgpack.encode(report)]} if drafting else {}
        result = StepResult(
            plan.step,
            sampled,
            [5] * (sum(accepted) or len(sampled)),
            accepted=accepted,
            payloads=payloads,
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
        LLM(**common, speculative_config=arguments.baseline) as plain,
        LLM(**common, speculative_config=arguments.config) as drafting,
    ):
        for streams in arguments.streams:
            rounds = _rounds(arguments, plain, streams)
            figures: list[tuple[float, float]] = []
            counts = ["", ""]
            for turn in range(arguments.rounds + 1):
                prompts, params = rounds[turn % len(rounds)]
                speeds = [0.0, 0.0]
                for which in (0, 1) if turn % 2 else (1, 0):  # alternates the order
                    llm = (plain, drafting)[which]
                    outputs = []
                    begun = time.perf_counter()
                    for at in range(0, len(prompts), streams):
                        outputs += llm.generate(
                            prompts[at : at + streams], params[at : at + streams], use_tqdm=False
                        )
                    took = time.perf_counter() - begun
                    made = sum(len(output.outputs[0].token_ids) for output in outputs)
                    counts[which] = _counts(outputs)
                    speeds[which] = made / took
                if turn:  # the first round is a warmup
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
    """Return the acceptance counts as text."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    drafts, num_drafted, accepted_count = (
        sum(o.counts.get(f"spec_decode_num_{name}", 0) for o in outputs) for name in names
    )
    if not drafts:
        return "no drafts"
    return (
        f"{num_drafted / drafts:.1f} draft tokens and {accepted_count / drafts:.2f} accepted "
        f"per drafting step, {accepted_count:.0f} accepted"
    )


def _rounds(
    arguments: argparse.Namespace, llm: LLM, streams: int
) -> list[tuple[Any, list[SamplingParams]]]:
    """Return prompts and parameters of each round, repeated if there are more rounds."""
    if not arguments.questions:
        texts, params = _requests(arguments, streams)
        if arguments.model is not None:
            return [(texts, params)]
        return [
            (llm.preprocess_chat([[{"role": "user", "content": text}] for text in texts]), params)
        ]
    # lazy: needs the repository's examples
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
    """Return prompts and parameters."""
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
    """Return whether an output satisfies its schema."""
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
