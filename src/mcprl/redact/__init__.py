"""Secrets: which there are, and what strikes them out of every text that leaves the process or stays on a disk.

Two searches follow each other. The first (values.py) finds the values that were registered, however they are written:
quoted for a URL, escaped for JSON or HTML, in base64. The second (shapes.py) finds what looks like a key though nobody
registered it: parameters of URLs, authorization headers, passwords in URLs, the formats of well-known services. It
prefers to miss a doubtful thing over spoiling ordinary text, because the policy reads and learns from what is left.

    SECRETS.add("FMP_API_KEY", "3f9a…")
    SECRETS.redact("GET /quote?apikey=3f9a…")     # 'GET /quote?apikey=[redacted FMP_API_KEY]'

Redacting twice is the same as redacting once, and the time is linear in the length of the text. What no search of this
kind finds: a value that was reversed, encrypted, taken to pieces, or cut at its beginning.
"""

from __future__ import annotations

from mcprl.redact.registry import MIN_SECRET_CHARACTERS, SECRETS, SecretRegistry
from mcprl.redact.shapes import looks_secret

__all__ = ["MIN_SECRET_CHARACTERS", "SECRETS", "SecretRegistry", "looks_secret"]
