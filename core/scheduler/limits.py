"""The numbers a scheduler works within, and the refusal of requests that could never end within
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ConfigError, InvalidRequest
from core.step import EngineRequest


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What one step and one request may take."""

    max_num_batched_tokens: int
    """Token budget of one step; at most as many requests run, so each gets a token."""
    max_num_seqs: int
    """Rows of the batch."""
    max_model_len: int
    chunked_prefill: bool = True
    """False: a prompt is computed in one step or not at all."""
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request per step; 0: the budget."""
    max_mixed_prefill_tokens: int = 0
    """Most prompt tokens in a step in which others decode; 0: the budget.

    Only where prompts may be computed in chunks.
    """

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag} {getattr(self, name)} lets no request run; give at least 1."
                )
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"--long-prefill-token-threshold {self.long_prefill_token_threshold} is negative; "
                "0 switches it off."
            )

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of one request in one step."""
        budget = self.max_num_batched_tokens
        threshold = self.long_prefill_token_threshold
        return min(budget, threshold) if threshold and self.chunked_prefill else budget

    def check(self, request: EngineRequest, longest: int) -> None:
        """Refuse a request that could not end even alone in an empty cache, naming the limit and
        the way out.

        `longest`: tokens of the longest sequence that such a cache holds.
        """
        prompt = len(request.prompt_token_ids)
        known = prompt + len(request.output_token_ids)
        length = min(prompt + request.max_tokens, self.max_model_len)
        if not prompt:
            raise InvalidRequest("prompt", "it has no tokens; give at least one.")
        if known >= length:
            raise InvalidRequest(
                "prompt",
                f"{known} tokens leave no room to generate: at most {length - 1} of the "
                f"{self.max_model_len} tokens "
                f"of context may be used. Shorten the prompt.",
            )
        for span in request.spans:
            if span.start + span.length > prompt:
                raise InvalidRequest(
                    "prompt", f"it has {prompt} tokens, {span} ends behind them; correct it."
                )
        if not self.chunked_prefill and known > self.max_num_batched_tokens:
            raise InvalidRequest(
                "prompt",
                f"{known} tokens are more than the step budget of {self.max_num_batched_tokens}, "
                "and chunked prefill "
                "is off. Shorten the prompt, raise --max-num-batched-tokens or switch on "
                "--enable-chunked-prefill.",
            )
        # Keys and values of the last token are never needed.
        if length - 1 > longest:
            most = longest + 1
            raise InvalidRequest(
                "max_tokens" if most > known else "prompt",
                f"prompt and output of {length} tokens do not fit the KV cache, which holds "
                f"{most}. "
                f"Ask for at most {max(0, most - prompt)} output tokens, shorten the prompt, or "
                "give the engine "
                f"more --kv-cache-memory-bytes.",
            )
