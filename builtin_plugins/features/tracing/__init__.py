"""OpenTelemetry traces of requests, from the client's span to the engine's steps."""
