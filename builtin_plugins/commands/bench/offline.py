"""Shared code of the benchmarks that start an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from builtin_plugins.commands.bench.workload import Sample, TokenIds
from core.api import ConfigError, EngineError, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from builtin_plugins.commands.bench.async_engine import AsyncEngine
    from core import LLM
    from core.api import CommandContext

COMMON_IDS = 1000
"""Vocabulary size to use if it is unknown."""


@overload
def open_engine(context: CommandContext) -> LLM: ...
@overload
def open_engine(context: CommandContext, *, is_async: bool) -> LLM | AsyncEngine: ...
def open_engine(context: CommandContext, *, is_async: bool = False) -> LLM | AsyncEngine:
    """Start the engine of the command line: in this process, or the engine of servers."""
    # lazy: torch is slow to import
    if is_async:
        from builtin_plugins.commands.bench.async_engine import AsyncEngine
        from core import AsyncLLM

        return AsyncEngine(AsyncLLM.from_config(context.config, context.registry))
    from core import LLM

    return LLM.from_config(context.config, context.registry)


def units_of(llm: LLM | AsyncEngine) -> TokenIds:
    """Return the source of random prompts for this engine."""
    tokenizer = llm.get_tokenizer()
    return TokenIds(COMMON_IDS if tokenizer is None else tokenizer.vocab_size, tokenizer)


def check_lengths(llm: LLM | AsyncEngine, samples: Sequence[Sample]) -> None:
    """Raise `ConfigError` if a request exceeds the context length."""
    context = llm.config.model.max_model_len or 0
    longest = max(samples, key=lambda sample: (sample.prompt_tokens or 0) + sample.output_tokens)
    tokens = (longest.prompt_tokens or 0) + longest.output_tokens
    if tokens > context:
        raise ConfigError(
            f"{longest.prompt_tokens} prompt tokens and {longest.output_tokens} to generate are "
            "more than the context "
            f"of {context}. Use less (--input-len, --output-len), or raise --max-model-len if "
            "the model allows it."
        )


def sampling(args: Any, output_tokens: int) -> SamplingParams:
    """Return parameters that generate exactly `output_tokens`."""
    return SamplingParams(
        n=args.n,
        temperature=args.temperature,
        max_tokens=output_tokens,
        ignore_eos=True,
        detokenize=not args.disable_detokenize,
    )


def add_sampling(parser: Any) -> None:
    """Add the sampling flags."""
    parser.add_argument(
        "--n", type=int, default=1, metavar="N", help="sequences for each prompt (default: 1)"
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0: greedy (default: 1)"
    )
    parser.add_argument("--disable-detokenize", action="store_true", help="disable detokenization")


def refuse_failures(outputs: Sequence[RequestOutput]) -> None:
    """Raise if a request failed: the metrics would be meaningless."""
    failed = [output.error for output in outputs if output.error]
    if failed:
        raise EngineError(
            f"{len(failed)} of {len(outputs)} requests failed; the first: {failed[0]}"
        )


def generated(outputs: Sequence[RequestOutput]) -> int:
    """Return the number of generated tokens."""
    return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)


def draft_counts(outputs: Sequence[RequestOutput]) -> tuple[int, int]:
    """Return the number of drafts and of accepted draft tokens."""
    names = ("spec_decode_num_drafts", "spec_decode_num_accepted_tokens")
    drafts, accepted = (
        int(sum(output.counts.get(name, 0) for output in outputs)) for name in names
    )
    return drafts, accepted
