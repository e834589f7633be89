"""The hash by which the content of weights is known: 128 bits, as fast as the memory can be read.

It is XXH3 (https://xxhash.com). Where its package is missing, as in a WebUI whose installer did not run since an update, it is
BLAKE2b, which takes seven times as long. Neither has to withstand planted collisions: the weights are the user's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

Hash = Callable[[], Any]


def _hash() -> tuple[str, Hash]:
    """The name of the hash, and what makes an object with ``update`` and ``digest``, as those of hashlib."""
    try:
        import xxhash
    except ImportError:
        return "blake2b", lambda: hashlib.blake2b(digest_size=16)
    return "xxh3", xxhash.xxh3_128


#: Part of the name of a content, for both have 128 bits.
NAME, new = _hash()


def of(parts: Iterable[bytes | memoryview]) -> bytes:
    """The hash of bytes that are given in parts: 16 bytes."""
    whole = new()
    for part in parts:
        whole.update(part)
    return bytes(whole.digest())
