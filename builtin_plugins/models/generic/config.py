"""Reads a config into transformers' own config object."""

from __future__ import annotations

from typing import Any

import transformers

from core.api import ModelError


def read_config(hf_config: Any) -> Any:
    """Return transformers' config object.

    Raises `ModelError` if the model type is unknown or the values are invalid.
    """
    model_type = getattr(hf_config, "model_type", None)
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"transformers {transformers.__version__} knows no model_type {model_type!r:.100}; "
            "a checkpoint's own code is not run. A newer transformers may know it."
        )
    try:
        return transformers.CONFIG_MAPPING[model_type].from_dict(dict(vars(hf_config)))
    except Exception as error:
        raise ModelError(
            f"transformers rejects config.json: {error}. Restore the original file."
        ) from error
