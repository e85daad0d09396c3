"""Transports to a tool server (stdio and streamable HTTP), and the errors that they report for a call."""
