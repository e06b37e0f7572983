"""The hidden state of the middle token (`--pooler-config '{"pooling_type": "middle"}'`)."""

from core.api import Entry, hookimpl

EXAMPLES = [([[1.0, 0.0], [5.0, 4.0], [0.0, 1.0]], [7, 8, 9], [[5.0, 4.0]])]


class Middle:
    needs_whole_prompt = True  # needs every token's hidden state, so no prefix cache
    per_token = False

    def pool(self, hidden, token_ids, params):
        middle = (hidden.shape[0] - 1) // 2
        return hidden[middle : middle + 1]


@hookimpl
def engine_poolers():
    return [Entry("middle", Middle, "the token in the middle")]
