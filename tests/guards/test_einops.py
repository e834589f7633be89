"""einops calls torch by an object of its own, which a trace may be the first to make and anybody may change."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Scaled, X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


def test_a_function_on_the_object_by_which_einops_calls_torch_counts(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    einops = pytest.importorskip("einops")
    module = Scaled(lambda m: einops.rearrange(m.t, "a b -> b a"), t=torch.arange(12.0).reshape(4, 3))
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    module_of_backends = pytest.importorskip("einops._backends")
    backends = getattr(module_of_backends, "_loaded_backends", None) or module_of_backends._backends
    backend = backends["torch"]
    transpose = backend.transpose
    monkeypatch.setattr(backend, "transpose", lambda x, axes: transpose(x, axes) * 2, raising=False)
    assert_eager(network, module)
    monkeypatch.undo()
    assert_eager(network, module)


def test_the_first_use_of_einops_may_be_a_trace(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    einops = pytest.importorskip("einops")
    backends = pytest.importorskip("einops._backends")
    for name in ("_loaded_backends", "_type2backend", "_backends"):
        if hasattr(backends, name):
            monkeypatch.setattr(backends, name, {})
    x = torch.arange(12.0).reshape(4, 3)
    module = Scaled(lambda m: einops.rearrange(m.t, "a b -> b a"), t=x)
    network = engine_for(strict(), module)
    for _ in range(2):
        torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 2


@pytest.mark.parametrize("name", ["einops.einops._apply_recipe", "torch.nn.functional.silu"])
def test_a_function_of_a_library_that_an_object_replaces_is_called(
    name: str, strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    einops, silu = pytest.importorskip("einops"), torch.nn.SiLU()
    module = Scaled(lambda m: einops.rearrange(silu(m.t), "a b -> b a"), t=torch.arange(12.0).reshape(4, 3))
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    original = pkgutil.resolve_name(name)
    monkeypatch.setattr(name, functools.partial(lambda *args, **kwargs: original(*args, **kwargs) * 2))
    assert_eager(network, module)
    assert network.statistics.last_reason == f"{name} was replaced by a partial"
    monkeypatch.undo()
    assert_eager(network, module)


def _rearranged(tensor: torch.Tensor, pattern: str, **axes_lengths: int) -> torch.Tensor:
    return tensor.t() * 2


def _activated(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("name", ["einops.einops.rearrange", "torch.nn.functional.silu"])
def test_other_code_in_a_function_of_a_library_is_seen(name: str, strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    rearrange = pytest.importorskip("einops").rearrange
    module = Scaled(lambda m: rearrange(torch.nn.functional.silu(m.t), "a b -> b a"), t=torch.arange(12.0).reshape(4, 3))
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    with monkeypatch.context() as patch:
        patch.setattr(pkgutil.resolve_name(name), "__code__", (_activated if "silu" in name else _rearranged).__code__)
        assert_eager(network, module)
    assert_eager(network, module)
    assert network.statistics.calls == 3
