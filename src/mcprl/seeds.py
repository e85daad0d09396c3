"""Derives an independent seed for each purpose from one root seed.

A seed depends only on the root seed and its path, not on the order of calls: the same (step, task, episode, turn)
always gets the same seed.
"""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]

# vLLM and torch take signed 64-bit seeds. 63 bits are non-negative in both.
_BITS = 63


def derive_seed(root: int, *path: str | int) -> int:
    """Return a seed for the random stream named by `path`: 63 bits of a hash of `root` and `path`.

    >>> derive_seed(7, "turn", 3, "meet-ana", 0, 1) == derive_seed(7, "turn", 3, "meet-ana", 0, 1)
    True
    >>> derive_seed(7, "turn", 3, "meet-ana", 0, 1) == derive_seed(7, "turn", 3, "meet-ana", 0, 2)
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (root, *path):
        # The type and length prefixes distinguish ("a", "b") from ("ab",) and 1 from "1".
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "big") + text)
    return int.from_bytes(digest.digest(), "big") >> (64 - _BITS)
