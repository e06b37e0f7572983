"""Public names of output parsers: the runtime, its formats and its events. Torch-free."""

from builtin_plugins.output_parsers.contract import (
    CallText,
    ParseRequest,
    ReasoningFormat,
    ToolFormat,
    random_call_id,
)
from builtin_plugins.output_parsers.reasoning_bounds import REASONING_BOUNDS, ReasoningBounds
from builtin_plugins.output_parsers.runtime.arguments import call_arguments
from builtin_plugins.output_parsers.runtime.channels import Channels, MessageKind, read_channels
from builtin_plugins.output_parsers.runtime.events import (
    ArgumentsPiece,
    Call,
    CallBegun,
    CallEnded,
    Event,
    Reasoning,
    Text,
)
from builtin_plugins.output_parsers.runtime.formats import (
    fit_format,
    known_formats,
    suggest_parsers,
)
from builtin_plugins.output_parsers.runtime.json_stream import CallKeys
from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json
from builtin_plugins.output_parsers.runtime.output import (
    OutputParser,
    ParsedDelta,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.output_parsers.runtime.reader import OutputReader
from builtin_plugins.output_parsers.runtime.response_template import (
    Delimiter,
    TemplateField,
    read_pattern,
    read_response_template,
)
from builtin_plugins.output_parsers.runtime.streamed_call import Feed, StreamedCall
from builtin_plugins.output_parsers.runtime.text_stream import Reading
from builtin_plugins.output_parsers.runtime.values import schema_types, typed_arguments, typed_value

__all__ = [
    "REASONING_BOUNDS",
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
    "MessageKind",
    "OutputParser",
    "OutputReader",
    "ParseRequest",
    "ParsedDelta",
    "Piece",
    "Reading",
    "Reasoning",
    "ReasoningBounds",
    "ReasoningFormat",
    "ReasoningPiece",
    "StreamedCall",
    "TemplateField",
    "Text",
    "TextPiece",
    "ToolFormat",
    "call_arguments",
    "fit_format",
    "known_formats",
    "random_call_id",
    "read_channels",
    "read_json",
    "read_pattern",
    "read_response_template",
    "schema_types",
    "suggest_parsers",
    "typed_arguments",
    "typed_value",
]
