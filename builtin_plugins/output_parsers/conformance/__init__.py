"""Conformance suites of tool and reasoning parsers, registered in `engine.conformance_suites`."""
