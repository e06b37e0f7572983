"""The edge of pooling: parameters are checked against what the model can do.

Knows no text and no torch.
"""

from __future__ import annotations

from typing import Any

from core.api import InvalidRequest, PoolingInfo, PoolingParams, RequestOutputKind, SamplingParams


def as_sampling(info: PoolingInfo, params: Any) -> tuple[PoolingParams, SamplingParams]:
    """Return the pooling parameters, complete, and sampling parameters that go with them.

    Raises `InvalidRequest` for what the model cannot do, and for requests of other runners.
    """
    if not isinstance(params, PoolingParams):
        raise InvalidRequest(
            "sampling_params",
            "this engine runs --runner pooling and makes no tokens; embed, classify or score.",
        )
    task = params.task or info.tasks[0]
    if task not in info.tasks:
        raise InvalidRequest(
            "task", f"{task!r} is nothing this model does; it does {', '.join(info.tasks)}."
        )
    _check_dimensions(info, task, params.dimensions)
    for column in params.returned_token_ids or ():
        if column >= info.size:
            raise InvalidRequest(
                "returned_token_ids", f"{column} is outside the {info.size} columns of the scores."
            )
    fresh = task in info.whole or bool(params.skip_reading_prefix_cache)
    sampling = SamplingParams(
        max_tokens=1,
        detokenize=False,
        ignore_eos=True,
        truncate_prompt_tokens=params.truncate_prompt_tokens,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=fresh,
    )
    step = info.step_tag_id if params.step_tag_id is None else params.step_tag_id
    return params.clone(task=task, step_tag_id=step), sampling


def _check_dimensions(info: PoolingInfo, task: str, wanted: int | None) -> None:
    if wanted is None:
        return
    if not task.endswith("embed"):
        raise InvalidRequest("dimensions", f"only embeddings can be cut, not what {task!r} gives.")
    if not info.matryoshka:
        raise InvalidRequest(
            "dimensions",
            "the embeddings of this model were not made to be cut (is_matryoshka in its "
            "config.json).",
        )
    if wanted > info.size:
        raise InvalidRequest(
            "dimensions", f"{wanted} is more than the {info.size} numbers of an embedding."
        )
    if info.dimensions and wanted not in info.dimensions:
        raise InvalidRequest(
            "dimensions", f"must be one of {', '.join(map(str, info.dimensions))}, not {wanted}."
        )
