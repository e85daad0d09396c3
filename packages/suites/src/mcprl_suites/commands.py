"""`mcprl serve bfcl`."""

from __future__ import annotations

from mcprl.cli.serve import Http, Port, serve_by_name


def bfcl(http: Http = False, port: Port = 8000) -> None:
    """Simulators of one BFCL multi-turn task; the first call names the task."""
    serve_by_name("bfcl", http, port)
