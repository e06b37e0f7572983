"""The pooling methods of `LLM`, as in vLLM: embed, encode, classify, score, reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from builtin_plugins.runners.pooling.long_texts import TextSplitter, mean_of_chunks
from core.api import InvalidRequest, PoolingParams
from core.api.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingInfo,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)

if TYPE_CHECKING:
    from builtin_plugins.runners.pooling.prompts import PoolingPrompts
    from core.api import RequestOutput

Run = Callable[..., list["RequestOutput"]]
Params = PoolingParams | Sequence[PoolingParams] | None
Outputs = list[PoolingRequestOutput[PoolingOutput]]


class LLMPoolingCalls:
    """Turns calls into requests and their ends into vLLM's outputs.

    `prompts` are texts, token ids or prompt dicts; `pooling_params` one for all or one for each.
    Options of every method: `truncate_prompt_tokens`, `use_tqdm` and `prompt_name` (a text the
    model's files keep under that name is put before each prompt), and keywords that features read.
    Raises `InvalidRequest` before anything runs, `RequestFailed` when a request failed inside.
    """

    def __init__(
        self,
        prompts: PoolingPrompts,
        info: PoolingInfo,
        run: Run | None,
        splitter: TextSplitter | None = None,
    ) -> None:
        """`splitter` cuts long texts; None: they are refused."""
        self._prompts = prompts
        self._info = info
        self._run = run
        self._splitter = splitter
        self.combine = mean_of_chunks

    def prepare(
        self, prompt: Any, params: PoolingParams, name: str | None, stopped: Callable[[], bool]
    ) -> list[tuple[Any, PoolingParams]]:
        """Return the requests that are run for a prompt, or for a pair where it is a tuple of two
        texts, or of objects with `content`.
        """
        if isinstance(prompt, tuple) and len(prompt) == 2 and not isinstance(prompt[0], int):
            return [self._prompts.pair(prompt[0], prompt[1], params)]
        return self._split(*self._prompts.one(prompt, params, name, stopped=stopped))

    def encode(
        self,
        prompts: Any,
        pooling_params: Params = None,
        *,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Any = True,
        prompt_name: str | None = None,
        **keywords: Any,
    ) -> Outputs:
        """Return tensors: what the model was made for, or `pooling_task`."""
        listed = _listed(prompts)
        params = _params(pooling_params, len(listed), pooling_task, truncate_prompt_tokens)
        made = [
            self._prompts.one(prompt, each, prompt_name)
            for prompt, each in zip(listed, params, strict=True)
        ]
        cut = [self._split(*prompt) for prompt in made]
        runs = [run for runs in cut for run in runs]
        given = _per_request(keywords, [len(runs) for runs in cut])
        found = iter(
            self._outputs(
                [prompt for prompt, _ in runs], [each for _, each in runs], use_tqdm, given
            )
        )
        return [mean_of_chunks([next(found) for _ in runs]) for runs in cut]

    def embed(
        self, prompts: Any, pooling_params: Params = None, **options: Any
    ) -> list[EmbeddingRequestOutput]:
        """Return one embedding for each prompt."""
        found = self.encode(prompts, pooling_params, pooling_task="embed", **options)
        return [
            EmbeddingRequestOutput(
                o.request_id,
                EmbeddingOutput(o.outputs.pooled.numbers()),
                o.prompt_token_ids,
                o.num_cached_tokens,
            )
            for o in found
        ]

    def classify(
        self, prompts: Any, pooling_params: Params = None, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """Return the probabilities of the labels for each prompt."""
        found = self.encode(prompts, pooling_params, pooling_task="classify", **options)
        return [
            ClassificationRequestOutput(
                o.request_id,
                ClassificationOutput(o.outputs.pooled.numbers()),
                o.prompt_token_ids,
                o.num_cached_tokens,
            )
            for o in found
        ]

    def reward(self, prompts: Any, pooling_params: Params = None, **options: Any) -> Outputs:
        """Return the scores of each prompt's tokens, or of its steps where the model knows
        steps.
        """
        return self.encode(prompts, pooling_params, pooling_task="token_classify", **options)

    def score(
        self,
        data_1: Any,
        data_2: Any,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Any = True,
        pooling_params: PoolingParams | None = None,
        **keywords: Any,
    ) -> list[ScoringRequestOutput]:
        """Return how near each pair is: as a cross-encoder says, else the cosine of their
        embeddings.

        `data_1` may be one text for all of `data_2`. With a chat template for pairs, each may be an
        object with `content`: parts of messages, such as images.
        """
        first = _listed(data_1)
        second = _listed(data_2)
        if len(first) == 1:
            first = first * len(second)
        if not second or len(first) != len(second):
            raise InvalidRequest(
                "data_1",
                f"has {len(first)} texts for the {len(second)} of data_2; give one, or as many.",
            )
        params = _params(pooling_params, 1, None, truncate_prompt_tokens)[0]
        if "embed" in self._info.tasks:
            return self._cosines(first, second, params, use_tqdm, keywords)
        made = [
            self._prompts.pair(*pair, params.clone(task="score"))
            for pair in zip(first, second, strict=True)
        ]
        found = self._outputs(
            [prompt for prompt, _ in made], [each for _, each in made], use_tqdm, keywords
        )
        return [
            ScoringRequestOutput(
                o.request_id,
                ScoringOutput(o.outputs.pooled.numbers()[0]),
                o.prompt_token_ids,
                o.num_cached_tokens,
            )
            for o in found
        ]

    def _split(self, prompt: Any, params: PoolingParams) -> list[tuple[Any, PoolingParams]]:
        """Return the requests that are run for a prompt: one, or several for a long text that is
        embedded.
        """
        is_embedded = (params.task or self._info.tasks[0]) == "embed"
        return (
            self._splitter.split(prompt, params)
            if self._splitter is not None and is_embedded
            else [(prompt, params)]
        )

    def _cosines(
        self,
        first: list[Any],
        second: list[Any],
        params: PoolingParams,
        use_tqdm: Any,
        keywords: dict[str, Any],
    ) -> list[ScoringRequestOutput]:
        twice = {
            name: [*value, *value] if isinstance(value, (list, tuple)) else value
            for name, value in keywords.items()
        }
        both = self.embed([*first, *second], params, use_tqdm=use_tqdm, **twice)
        return [
            ScoringRequestOutput(
                f"{a.request_id}_{b.request_id}",
                ScoringOutput(_cosine(a.outputs.embedding, b.outputs.embedding)),
                a.prompt_token_ids + b.prompt_token_ids,
                a.num_cached_tokens + b.num_cached_tokens,
            )
            for a, b in zip(both[: len(first)], both[len(first) :], strict=True)
        ]

    def _outputs(
        self,
        prompts: Sequence[Any],
        params: Sequence[PoolingParams],
        use_tqdm: Any,
        keywords: dict[str, Any],
    ) -> Outputs:
        assert self._run is not None, "these calls only make prompts ready"
        outputs = self._run(prompts, params, use_tqdm, None, **keywords)
        return [PoolingRequestOutput.of(output) for output in outputs]


def _listed(prompts: Any) -> list[Any]:
    """Return a list of prompts: a text, ids or a dict alone is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray)):
        raise InvalidRequest(
            "prompts", f"must be a prompt or a list of prompts, not {prompts!r:.100}."
        )
    return [list(prompts)] if prompts and isinstance(prompts[0], int) else list(prompts)


def _per_request(keywords: dict[str, Any], counts: list[int]) -> dict[str, Any]:
    """Return keywords with one value per request; prompt i has `counts[i]` requests.

    Only lists with one value per prompt are expanded.
    """

    def each(values: Sequence[Any]) -> list[Any]:
        return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]

    # lists of another length are rejected later, with their name
    fits = {
        name
        for name, v in keywords.items()
        if isinstance(v, (list, tuple)) and len(v) == len(counts)
    }
    return {name: each(value) if name in fits else value for name, value in keywords.items()}


def _params(
    given: Params, count: int, task: str | None, truncate: int | None
) -> list[PoolingParams]:
    params = PoolingParams() if given is None else given
    listed: list[Any] = [params] * count if not isinstance(params, Sequence) else list(params)
    if len(listed) != count or not all(isinstance(each, PoolingParams) for each in listed):
        raise InvalidRequest(
            "pooling_params", f"must be PoolingParams, or a list of {count} of them."
        )
    changes: dict[str, Any] = {} if task is None else {"task": task}
    if truncate is not None:
        changes["truncate_prompt_tokens"] = truncate
    return [each.clone(**changes) for each in listed] if changes else listed


def _cosine(first: list[float], second: list[float]) -> float:
    """Return the cosine of the angle between two embeddings; 0 where one is nothing but zeros."""
    lengths = math.sqrt(math.fsum(x * x for x in first) * math.fsum(x * x for x in second))
    return (
        math.fsum(x * y for x, y in zip(first, second, strict=True)) / lengths if lengths else 0.0
    )
