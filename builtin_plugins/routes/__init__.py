"""HTTP route groups, and what they share: reading requests, streaming events, noticing that a
client has left.
"""
