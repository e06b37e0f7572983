"""Reasoning in asides: `<aside>between these</aside>`, any number of them."""

from builtin_plugins.output_parsers.api import ReasoningFormat
from core.api import Entry, hookimpl

EXAMPLES = [("<aside>easy</aside>Yes.", "easy", "Yes."), ("Yes.", "", "Yes.")]


def read(reader, request):
    while (yield from reader.content_until("<aside>")):
        yield from reader.reasoning_until("</aside>")


FORMAT = ReasoningFormat(
    read, markers=("<aside>", "</aside>"), starts=("<aside>",), ends=("</aside>",)
)


@hookimpl
def engine_reasoning_parsers():
    return [Entry("asides", FORMAT, "reasoning between <aside> and </aside>")]
