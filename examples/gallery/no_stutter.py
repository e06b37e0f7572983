"""No token repeats directly, for requests with `extra_args={"no_stutter": True}`."""

from core.api import Entry, hookimpl

NEVER = float("-inf")
EXTRA = {"extra_args": {"no_stutter": True}}
EXAMPLES = [(EXTRA, [0, 2], [0.0, 1.0, 2.0], [0.0, 1.0, NEVER])]
EXAMPLE_PARAMS = EXTRA


class NoStutter:
    params = ()
    argmax_invariant = False

    def __init__(self, context):
        pass

    def wants(self, sampling):
        return bool((sampling.extra_args or {}).get("no_stutter"))

    def added(self, row, sampling, token_ids, prompt_len):
        pass

    def removed(self, row):
        pass

    def apply(self, logits, rows):
        last = rows.token_ids[rows.row_index, rows.length_index - 1]  # [n]
        return logits.scatter_(1, last[:, None], NEVER)


@hookimpl
def engine_logits_processors():
    return [Entry("no_stutter", NoStutter, "no token twice in a row")]
