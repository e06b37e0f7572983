"""Turns every small letter the model wants to write into a capital (for byte-level tokenizers)."""

from core.api import Entry, hookimpl

SMALL = slice(ord("a"), ord("z") + 1)
CAPITAL = slice(ord("A"), ord("Z") + 1)
NEVER = float("-inf")
EXAMPLES = [({}, [72], [*range(123)], [*range(65), *range(97, 123), *range(91, 97), *[NEVER] * 26])]


class Shout:
    """Moves the logits of small letters to their capitals."""

    params = ()
    argmax_invariant = False

    def __init__(self, context):
        pass

    def wants(self, sampling):
        return not (sampling.extra_args or {}).get("quiet")

    def added(self, row, sampling, token_ids, prompt_len):
        pass

    def removed(self, row):
        pass

    def apply(self, logits, rows):
        logits[:, CAPITAL] = logits[:, CAPITAL].maximum(logits[:, SMALL])
        logits[:, SMALL] = NEVER
        return logits


@hookimpl
def engine_logits_processors():
    return [Entry("shout", Shout, "capital letters only")]
