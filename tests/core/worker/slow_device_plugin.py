"""The plugin file that tests select; its classes are those the test imports."""

from tests.core.worker.slow_device import engine_platforms  # noqa: F401 - the hook
