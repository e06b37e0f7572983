"""Tools of MCP servers for the Responses API."""
