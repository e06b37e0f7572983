"""Model text to what a client sees: reasoning, content, tool calls.

Torch-free; knows no model family by name.
"""

from builtin_plugins.output_parsers.runtime.channels import Channels, Kind, read_channels
from builtin_plugins.output_parsers.runtime.events import (
    ArgumentsPiece,
    Call,
    CallBegun,
    CallEnded,
    Event,
    Reasoning,
    Text,
)
from builtin_plugins.output_parsers.runtime.followed import CallKeys
from builtin_plugins.output_parsers.runtime.formats import (
    CallText,
    ParseRequest,
    Reading,
    ReasoningFormat,
    ToolFormat,
    fitted,
    random_call_id,
)
from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json
from builtin_plugins.output_parsers.runtime.output import (
    OutputParser,
    ParsedDelta,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.output_parsers.runtime.response_template import (
    Delimiter,
    TemplateField,
    read_pattern,
    read_response_template,
)
from builtin_plugins.output_parsers.runtime.scan import Scan
from builtin_plugins.output_parsers.runtime.suggest import known_formats, suggest
from builtin_plugins.output_parsers.runtime.told import Feed, Told
from builtin_plugins.output_parsers.runtime.values import schema_types, typed_arguments, typed_value

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
