"""Whether a raw answer is right; knows the formats, not the engine."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from examples.demo_model.chat import completion
from examples.demo_model.items import Item

_CALL: Final = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def right(item: Item, text: str) -> bool:
    """Say whether the raw text answers the item; whole answers are compared, not whether they
    contain something.
    """
    if item.skill == "arithmetic":
        # the working may differ, the result may not
        return ("<think>" in text) == item.thinking and text.rpartition("\n")[
            2
        ] == item.answer.rpartition("\n")[2]
    if item.skill == "json":
        return _same_json(text, item.answer)
    if item.skill == "tools" and item.calls:
        return (
            _CALL.sub("", text).strip() == ""
            and [_json(call) for call in _CALL.findall(text)] == item.calls
        )
    if item.skill == "tools" and item.variant == "none":
        return text == completion(item) and "<tool_call>" not in text
    return text == completion(item)


def _same_json(text: str, expected: str) -> bool:
    found = _json(text)
    reference = json.loads(expected)
    # 1 and 1.0 and true are equal in Python and different in JSON
    return found is not None and json.dumps(found, sort_keys=True) == json.dumps(
        reference, sort_keys=True
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
