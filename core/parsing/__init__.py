"""Model text to what a client sees: reasoning, content, tool calls.

Torch-free; knows no model family by name.
"""

from core.parsing.channels import Channels, Kind, read_channels
from core.parsing.events import ArgumentsPiece, Call, CallBegun, CallEnded, Event, Reasoning, Text
from core.parsing.followed import CallKeys
from core.parsing.formats import (
    CallText,
    ParseRequest,
    Reading,
    ReasoningFormat,
    ToolFormat,
    fitted,
    random_call_id,
)
from core.parsing.json_text import Broken, read_json
from core.parsing.output import OutputParser, ParsedDelta, Piece, ReasoningPiece, TextPiece
from core.parsing.response_template import (
    Delimiter,
    TemplateField,
    read_pattern,
    read_response_template,
)
from core.parsing.scan import Scan
from core.parsing.suggest import known_formats, suggest
from core.parsing.told import Feed, Told
from core.parsing.values import schema_types, typed_arguments, typed_value

__all__ = [
    "ArgumentsPiece",
    "Broken",
    "Call",
    "CallBegun",
    "CallEnded",
    "CallKeys",
    "CallText",
    "Channels",
    "Delimiter",
    "Event",
    "Feed",
    "Kind",
    "OutputParser",
    "ParseRequest",
    "ParsedDelta",
    "Piece",
    "Reading",
    "Reasoning",
    "ReasoningFormat",
    "ReasoningPiece",
    "Scan",
    "TemplateField",
    "Text",
    "TextPiece",
    "Told",
    "ToolFormat",
    "fitted",
    "known_formats",
    "random_call_id",
    "read_channels",
    "read_json",
    "read_pattern",
    "read_response_template",
    "schema_types",
    "suggest",
    "typed_arguments",
    "typed_value",
]
