"""The scheduler's limits, and the rejection of requests that could never end
within them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import InvalidRequest
from core.step import EngineRequest


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Upper bounds of one step and one request."""

    max_num_batched_tokens: int
    """Token budget of one step; also bounds the running requests, so each
    gets a token.
    """
    max_num_seqs: int
    """Rows of the batch."""
    max_model_len: int
    """Context length in tokens."""
    chunked_prefill: bool = True
    """Whether a prompt may be computed in several steps."""
    long_prefill_token_threshold: int = 0
    """Maximum of prompt tokens of one request per step; 0: the budget."""
    max_mixed_prefill_tokens: int = 0
    """Maximum of prompt tokens in a step with decode rows; 0: the budget.

    Shared by new requests; each resumed one has its own. Needs chunked prefill.
    """

    @property
    def max_step_tokens(self) -> int:
        """Maximum of tokens of one request in one step."""
        budget = self.max_num_batched_tokens
        threshold = self.chunked_prefill and self.long_prefill_token_threshold
        return min(budget, threshold or budget)

    def check(self, request: EngineRequest, longest: int) -> None:
        """Raise `InvalidRequest` for a request that could not end alone in an
        empty cache.

        `longest`: tokens of the longest sequence that such a cache holds.
        """
        prompt_len = len(request.prompt_token_ids)
        known = prompt_len + len(request.output_token_ids)
        length = min(prompt_len + request.max_tokens, self.max_model_len)
        self._check_prompt(request, known, length)
        # Keys and values of the last token are never needed.
        if length - 1 <= longest:
            return
        max_length = longest + 1
        raise InvalidRequest(
            "max_tokens" if max_length > known else "prompt",
            f"prompt and output of {length} tokens do not fit the KV cache, which holds "
            f"{max_length}. Ask for at most {max(0, max_length - prompt_len)} output tokens, "
            f"shorten the prompt, or give the engine more --kv-cache-memory-bytes.",
        )

    def _check_prompt(self, request: EngineRequest, known: int, length: int) -> None:
        prompt_len = len(request.prompt_token_ids)
        budget = self.max_num_batched_tokens
        if not prompt_len:
            raise InvalidRequest("prompt", "it has no tokens; give at least one.")
        if known >= length:
            raise InvalidRequest(
                "prompt",
                f"{known} tokens leave no room to generate: at most {length - 1} of the "
                f"{self.max_model_len} tokens of context may be used. Shorten the prompt.",
            )
        for span in request.spans:
            if span.start + span.length > prompt_len:
                raise InvalidRequest(
                    "prompt", f"it has {prompt_len} tokens, {span} ends after them; correct it."
                )
        if not self.chunked_prefill and known > budget:
            raise InvalidRequest(
                "prompt",
                f"{known} tokens are more than the step budget of {budget}, and chunked prefill "
                f"is off. Shorten the prompt, raise --max-num-batched-tokens or switch on "
                f"--enable-chunked-prefill.",
            )
