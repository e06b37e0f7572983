"""Proposes what followed the last token before (`--speculative-config '{"method": "lists"}'`)."""

from core.api import Entry, hookimpl

EXAMPLES = [([1, 2, 3, 1], 2, [2, 3]), ([1, 2, 3], 2, [])]


class Lists:
    is_lookup = True

    def __init__(self, config, settings, registry):
        pass

    def propose(self, rows):
        return [_continuation(row.tokens.tolist(), row.max_draft_tokens) for row in rows]


def _continuation(tokens, limit):
    *before, last = tokens
    at = next((i for i in reversed(range(len(before))) if before[i] == last), None)
    return [] if at is None else tokens[at + 1 : at + 1 + limit]


@hookimpl
def engine_speculators():
    return [Entry("lists", Lists, "what followed the last token before")]
