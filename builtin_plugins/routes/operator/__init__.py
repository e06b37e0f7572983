"""Operator routes: pause, sleep, caches, profiling, configuration, adapters, `/invocations`."""
