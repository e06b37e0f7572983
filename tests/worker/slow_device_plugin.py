"""What a test selects: the plugin's file is loaded under a name of its own, its classes are those
the test sees.
"""

from slow_device import engine_platforms  # noqa: F401 - the hook
