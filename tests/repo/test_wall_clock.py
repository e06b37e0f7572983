"""Only time stamps read the wall clock, which may jump: time limits read the monotonic one, and
end.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
MODULES = ("time.time", "datetime.")
"""One of these is in each file that calls a wall clock."""
STAMPS = {
    "builtin_plugins/chat_renderers/jinja/environment.py": "`strftime_now` of chat templates",
    "builtin_plugins/commands/doctor/machine.py": "the age of a folder, which has a wall time",
    "builtin_plugins/commands/serve/models/routes.py": "`created` of models",
    "builtin_plugins/features/kv_events/publisher.py": "the time of an event",
    "builtin_plugins/features/multimodal/store.py": "the age of a folder, which has a wall time",
    "builtin_plugins/features/tracing/tracer.py": "the times of spans",
    "builtin_plugins/kv_connectors/disk.py": "the age of a file, which has a wall time",
    "builtin_plugins/routes/common/requests.py": "`created` of answers",
    "builtin_plugins/routes/operator/profiling.py": "the name of a file",
    "builtin_plugins/routes/responses/sqlite_database.py": "ages of rows, over restarts",
}


def test_wall_clock_is_read_for_time_stamps_only() -> None:
    found = set()
    for folder in ("core", "builtin_plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not any(name in text for name in MODULES):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL_CLOCKS:
                    found.add(str(path.relative_to(ROOT)))
    assert found <= STAMPS.keys(), "use time.monotonic for durations and time limits"


def test_simple_queues_are_read_without_time_limit() -> None:
    """Once the limit has passed, that of Python 3.11 and 3.12 waits without end; `queue.Queue`
    does not.
    """
    for folder in ("core", "builtin_plugins", "plugins", "kernels", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "SimpleQueue" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    has_limit = any(word.arg == "timeout" for word in node.keywords)
                    assert not (node.func.attr == "get" and has_limit), (path, node.lineno)
