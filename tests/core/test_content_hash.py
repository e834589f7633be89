"""The hash of weights: known values, with and without the package that computes it fast."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator

import pytest
import torch

from ov_backend.core import content_hash
from ov_backend.guards import content


@pytest.fixture
def without_xxhash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "xxhash", None)
        importlib.reload(content_hash)
        yield
    importlib.reload(content_hash)


def test_it_is_xxh3() -> None:
    assert content_hash.NAME == "xxh3"
    assert content_hash.of([]).hex() == "99aa06d3014798d86001c324468d497f"  # of nothing, as the algorithm's own documents say
    assert content_hash.of([b"ab", memoryview(b"c")]) == content_hash.of([b"abc"]) != content_hash.of([b"acb"])


def test_without_its_package_it_is_blake2b(without_xxhash: None) -> None:
    assert content_hash.NAME == "blake2b"
    assert content_hash.of([b"ab", b"c"]) == hashlib.blake2b(b"abc", digest_size=16).digest()


def test_the_name_of_a_content_says_which_hash_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(6.0)
    digest = content.hashed(weight)
    name = content.name(weight, digest)
    monkeypatch.setattr(content_hash, "NAME", "blake2b")
    assert len(name) == 32
    assert content.name(weight, digest) != name


def test_a_content_has_another_name_with_another_shape_dtype_or_order() -> None:
    weight = torch.arange(6, dtype=torch.int32)
    others = [weight.view(2, 3), weight.view(3, 2), weight.view(torch.float32), weight.flip(0)]
    names = {content.name(each, content.hashed(each)) for each in (weight, *others)}
    assert len(names) == 5
