"""What a test selects: the plugin's file is loaded under a name of its own, its classes are those
the test sees.
"""

from halves import engine_runner_extensions  # noqa: F401 - the hook
