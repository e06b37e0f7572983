"""Mutants of the template plugins: changes that break the contract of each kind.

A change is (defect, old text, new text). The conformance suite of the kind must fail on each;
`SURVIVORS` are those that it misses, with the reason. The docs list the table; a test runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.core.plugin.model_mutants import MODEL_MUTANTS, Change

MUTANTS: Final[Mapping[str, tuple[Change, ...]]] = {
    **MODEL_MUTANTS,
    "scheduling_policies": (
        ("reverses the order", "request.num_prompt_tokens,", "-request.num_prompt_tokens,"),
        (
            "ignores small length differences",
            "(request.num_prompt_tokens,",
            "(request.num_prompt_tokens // 100,",
        ),
        ("the last comes first", ", request.arrival_s)", ", -request.arrival_s)"),
        (
            "returns a number",
            "return (request.num_prompt_tokens, request.arrival_s)",
            "return request.arrival_s",
        ),
        ("returns NaN", "request.arrival_s)", 'float("nan"))'),
        (
            "keys of two lengths",
            "request.arrival_s)",
            "*([request.arrival_s] if request.priority else []))",
        ),
        ("keeps a state", "return (", "self.n = getattr(self, 'n', 0) + 1; return (self.n, "),
        ("depends on the clock", "request.arrival_s)", "__import__('time').perf_counter())"),
    ),
    "launchers": (
        ("loses the environment", "{**environment, **ARENAS}", "ARENAS"),
        ("expects other messages", "what, kinds,", "what, bytes,"),
        ("returns nothing", "return self._inner.start", "return None and self._inner.start"),
        ("closes the child", "self._inner.close()", "self._inner.shut()"),
        ("takes no group", "environment: Mapping[str, str], group: Group", "environment: Any"),
        (
            "starts another target",
            "start(what,",
            "start(__import__('msgspec').structs.replace(what, target='os:abort'),",
        ),
        (
            "names another process",
            "start(what,",
            "start(__import__('msgspec').structs.replace(what, process='one'),",
        ),
    ),
    "metric_sinks": (
        ("drops tokens", "self.generated_tokens += stats.generated_tokens", "pass"),
        ("drops requests", "self.finished_requests += 1", "pass"),
        ("counts twice", "+= stats.generated_tokens", "+= 2 * stats.generated_tokens"),
        (
            "reports the last value, not the maximum",
            "max(self.max_running, stats.num_running)",
            "stats.num_running",
        ),
        (
            "divides by zero",
            "self.finished_requests += 1",
            "self.finished_requests += 1 // stats.generated_tokens",
        ),
        (
            "takes no configuration",
            "config: EngineConfig) -> None",
            "config: EngineConfig, more: int) -> None",
        ),
        ("has no step", "def step(", "def steps("),
    ),
    "commands": (
        ("prints another name", "{context.args.name}", "world"),
        ("prints nothing", "sys.stdout.write(", "str("),
        ("fails", "return 0", "return 1"),
        ("has no help", '"Say hello."', '""'),
        (
            "does not declare takes_engine_options",
            "takes_engine_options = False",
            "takes_engine_options = None",
        ),
        (
            "adds its arguments once",
            'parser.add_argument("--name"',
            'self.__dict__.setdefault("p", parser).add_argument("--name"',
        ),
        ("has another default", 'default="world"', 'default="you"'),
    ),
    "speculators": (
        ("never drafts", "* row.max_draft_tokens for row", "* 0 for row"),
        (
            "drafts too many tokens",
            "* row.max_draft_tokens for row",
            "* (row.max_draft_tokens + 1) for row",
        ),
        ("drafts another token", "return recent[:1]", "return [t + 1 for t in recent[:1]]"),
        ("drafts after every token", "if len(set(recent)) == 1 < len(recent) else []", ""),
        ("leaves rows out", "for row in rows]", "for row in rows if len(row.tokens) > 1]"),
        ("does not declare is_lookup", "is_lookup = True", "is_found = True"),
        ("reverses the rows", "for row in rows]", "for row in rows[::-1]]"),
    ),
    "kv_connectors": (
        ("stores no copy", "[part.copy() for part in block]", "list(block)"),
        ("loads nothing", "part[:] = source", "part == source"),
        (
            "loads in another order",
            "zip(block, stored, strict=True)",
            "zip(block[::-1], stored, strict=False)",
        ),
        ("returns another checksum", "return checksum", "return checksum[::-1]"),
        (
            "never overwrites a block",
            "self._blocks[key] = [part.copy() for part in block], checksum",
            "self._blocks.setdefault(key, ([part.copy() for part in block], checksum))",
        ),
        ("never drops a block", "self._blocks.pop(key, None)", "pass"),
        (
            "holds blocks that were never stored",
            "self._known[key] = False",
            "self._known[key] = True",
        ),
        ("never holds a block", "self._known[key] = True", "self._known[key] = False"),
        ("exceeds its capacity", "self.num_bytes + size > self.capacity_bytes", "False"),
        (
            "keeps discarded blocks",
            "if self._known.pop(key, None) is not None:",
            "if self._known.get(key) is not None:",
        ),
    ),
    "kv_eviction": (
        (
            "loses blocks of several requests",
            "len(self._once) + len(self._often)",
            "len(self._once)",
        ),
        ("iterates over some blocks only", "[*self._once, *self._often]", "[*self._often]"),
        (
            "evicts the newest first",
            "queue.popitem(last=last)",
            "queue.popitem(last=True)",
        ),
        ("keeps blocks that are in use again", "del queue[block]", "pass"),
        (
            "one order for all pools",
            "return Order()",
            "return self.__dict__.setdefault('one', Order())",
        ),
        (
            "depends on the clock",
            "self._uses.get(block, 0) > 1",
            "__import__('time').perf_counter_ns() % 3",
        ),
        ("never evicts blocks of several requests", "self._once or self._often", "self._once"),
    ),
    "routes": (
        ("has no route", "return [Route(", "return [] and [Route("),
        ("a path without a slash", '"/acme", self', '"acme", self'),
        (
            "serves a path twice",
            'return [Route("/acme", self._show, methods=["GET"])]',
            'return [Route("/acme", self._show, methods=["GET"])] * 2',
        ),
        (
            "other paths on the next call",
            '"/acme", self',
            'f"/acme{id(object())}{self.__dict__.setdefault(str(len(self.__dict__)), '
            '1)}{len(self.__dict__)}", self',
        ),
        (
            "makes other paths public",
            "def __init__",
            'public_paths = ("/v1/models",)\n\n    def __init__',
        ),
        (
            "takes the engine only",
            "engine: ServedEngine, config: EngineConfig)",
            "engine: ServedEngine)",
        ),
    ),
    "platforms": (
        ("has another name", 'name = "acme"', 'name = "cpu"'),
        ("unknown device", 'device = "cpu"', 'device = "no_such"'),
        ("ignores the configured size", "config.cache.kv_cache_memory_bytes or 256", "256"),
        ("memory that is not zeroed", "torch.zeros(num_bytes", "torch.ones(num_bytes"),
        ("memory of another dtype", "dtype=torch.uint8", "dtype=torch.float32"),
        ("unknown dtype", "else checkpoint_dtype", 'else "float8"'),
        ("facts without the device", '{"device": "cpu"}', '{"machine": "x"}'),
        ("returns None for is_available", "return True", "return None"),
    ),
    "executors": (
        (
            "gives the first result again",
            "return self._inner.collect()",
            "self.first = getattr(self, 'first', None) or self._inner.collect(); return self.first",
        ),
        ("no depth", "return self._inner.depth", "return 0"),
        ("does not shut down", "def shutdown(self)", "def shut_down(self)"),
        ("answers unknown calls", "return self._inner.call(name, data)", 'return [b""]'),
        ("starts twice", "return self._inner.start()", "return self._inner.start() and None"),
        (
            "swallows faults",
            "        finally:",
            "        except Exception:\n            return None\n        finally:",
        ),
    ),
    "workers": (
        ("returns no worker info", "return self._inner.start()", "self._inner.start()"),
        ("makes no cache", "self._inner.allocate(layout, first_layer)", "pass"),
        ("computes no step", "return self._inner.execute(plan)", "return None"),
        (
            "answers for missing features",
            "return self._inner.call(name, data)",
            'return b""',
        ),
        ("cannot be closed", "def close(self)", "def closed(self)"),
    ),
    "clients": (
        (
            "adds nothing",
            "return self._inner.add(requests, resumed=resumed)",
            "return self._inner.add([], resumed=resumed)",
        ),
        ("aborts nothing", "return self._inner.abort(request_ids)", "return self._inner.abort([])"),
        ("has no status", "return self._inner.status()", "return None"),
        (
            "answers unknown calls",
            "return self._inner.call(name, data)",
            "return self._inner.abort([])",
        ),
        ("starts nothing", "return self._inner.wait()", "return None"),
    ),
    "servers": (
        ("serves no group", "for group in every for route in group.routes()", "for group in []"),
        (
            "serves the first group only",
            "for group in every for",
            "for group in list(every)[:1] for",
        ),
        ("cannot run", "def run(self)", "def serve(self)"),
        ("takes one argument", "        config: EngineConfig,\n", ""),
    ),
    "runners": (
        ("takes every model", 'if config.model.runner != "acme":', "if False:"),
        (
            "takes any parameters",
            "return self._inner.read_params(info, params)",
            "return None, params",
        ),
        ("does not say whether it generates", "generates = True", "generates = None"),
        ("has no stage", "def stage(self", "def stages(self"),
    ),
    "admission_extensions": (
        (
            "does nothing",
            "return replace(draft, prompt_token_ids=[*prefix.token_ids, *draft.prompt_token_ids])",
            "return draft",
        ),
        (
            "appends instead of prepending",
            "[*prefix.token_ids, *draft.prompt_token_ids]",
            "[*draft.prompt_token_ids, *prefix.token_ids]",
        ),
        (
            "changes the draft",
            "return replace(draft, prompt_token_ids=",
            "draft.prompt_token_ids.insert(0, 1); return replace(draft, prompt_token_ids=",
        ),
        ("returns nothing", "return replace(", "replace("),
        ("raises TypeError for invalid values", "if not isinstance(text, str):", "if False:"),
        ("names another field", 'InvalidRequest("acme"', 'InvalidRequest("prompt"'),
        ("a string instead of names", 'keywords = ("acme",)', 'keywords = "acme"'),
        (
            "prepare without its draft",
            "def prepare(self, draft: PendingRequest)",
            "def prepare(self)",
        ),
    ),
    "scheduler_extensions": (
        ("never wakes", "self._scheduler.wake(request_id)", "pass"),
        (
            "keeps the blocks of ended requests",
            "self._scheduler.wake(request_id)\n        return False",
            "self._scheduler.wake(request_id)\n        return True",
        ),
        ("never frees a slot", "self._running.discard(request.request_id)", "pass"),
        (
            "raises",
            "self._parked.pop(request.request_id, None)\n        self._running",
            "self._parked.pop(request.request_id)\n        self._running",
        ),
        ("has no name", 'name = "acme"', 'named = "acme"'),
        (
            "requires another argument",
            "def may_start(self, request: Any)",
            "def may_start(self, request: Any, now: float)",
        ),
        ("returns None", "return True", "return None"),
    ),
    "runner_extensions": (
        (
            "reads back",
            "return (logits / self._cap)",
            "logits.sum().item(); return (logits / self._cap)",
        ),
        (
            "mixes rows",
            "return (logits / self._cap)",
            "return (logits.mean(0, keepdim=True) + 0 * logits) + (logits / self._cap)",
        ),
        ("returns nothing", "return (logits / self._cap)", "(logits / self._cap)"),
        ("makes NaN", "* self._cap", '* float("nan")'),
        ("loses rows", "(logits / self._cap).tanh()", "(logits[:1] / self._cap).tanh()"),
        ("draws at random", "* self._cap", "* self._cap * __import__('random').choice((1, -1))"),
        ("has no name", 'name = "acme"', 'named = "acme"'),
        ("is called otherwise", "def before_sample(", "def before_sampling("),
    ),
    "options": (
        ("a default of another type", "            10.0,\n", '            "ten",\n'),
        ("no help", '"Waiting time in seconds that outweighs 1,000 prompt tokens."', '""'),
        (
            "a name that is no flag",
            '            "acme_patience",\n',
            '            "Acme-Patience",\n',
        ),
        ("an example of another's", '{"acme_patience": 3.0}', '{"dtype": "float32"}'),
        ("reads another name", 'config.options["acme_patience"]', 'config.options["patience"]'),
        ("reverses the order", "request.arrival_s * self", "-request.arrival_s * self"),
    ),
    "find_model": (
        ("takes every name", "model.startswith(PREFIX)", "True"),
        ("takes none", "model.startswith(PREFIX)", "False"),
        ("raises for other names", 'return "scripted:"', 'model.index(PREFIX); return "scripted:"'),
        ("gives the same name", '"scripted:" if', "model if"),
        ("gives something else", '"scripted:" if', "7 if"),
    ),
    "add_hooks": (
        ("a hook that is not marked", "@hookspec\ndef", "def"),
        (
            "a hook without a docstring",
            '"""Return words of a language; empty for an unknown one."""',
            "",
        ),
        ("adds nothing", "return [hooks]", "return []"),
        ("another prefix", "def engine_acme_words", "def acme_words"),
    ),
}
SURVIVORS: Final[Mapping[tuple[str, str], str]] = {
    (
        "kv_connectors",
        "never overwrites a block",
    ): "the engine drops a block before it writes it again",
}
