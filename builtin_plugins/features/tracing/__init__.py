"""OpenTelemetry traces: what became of a request, from its client's span to the engine's steps."""
