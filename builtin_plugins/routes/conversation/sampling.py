"""The sampling fields of a request become `SamplingParams`: the model's defaults, then what the
client said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builtin_plugins.routes.conversation.fields import SAMPLING_FIELDS
from builtin_plugins.routes.conversation.structured import structured_outputs
from core.api import InvalidRequest, RequestOutputKind, SamplingParams

_INT64 = 2**63


def sampling_params(
    given: Mapping[str, Any], defaults: Mapping[str, Any], *, stream: bool, **decided: Any
) -> SamplingParams:
    """Return validated parameters. `decided` wins over `given`, `given` over `defaults`.

    Raises `InvalidRequest` naming field and limit.
    """
    values = {name: value for name, value in defaults.items() if name in SAMPLING_FIELDS}
    values |= {name: value for name, value in given.items() if name in SAMPLING_FIELDS}
    if "logit_bias" in values:
        values["logit_bias"] = _bias(values["logit_bias"])
    if "logit_bias" in values and not values["logit_bias"]:
        del values["logit_bias"]
    values["structured_outputs"] = structured_outputs(given)
    values |= decided
    for name, value in values.items():
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise InvalidRequest(name, f"must fit 64 bits, not {value}.")
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams.from_optional(**values, output_kind=kind)


def _bias(bias: Any) -> Any:
    """JSON has texts for keys; return token ids."""
    if not isinstance(bias, Mapping):
        return bias  # refused by the catalogue
    out: dict[Any, Any] = {}
    for token, value in bias.items():
        if isinstance(token, str) and not (token.isascii() and token.isdigit() and len(token) < 19):
            raise InvalidRequest(
                "logit_bias", f"token ids must be integers from 0, not {token[:32]!r}."
            )
        out[int(token)] = value
    return out
