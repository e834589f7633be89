"""A module under ``accelerate`` answers as PyTorch would after its class, or the forward of its class, was exchanged."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings, accelerate

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.p


class Shifted(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 3


class Halved(Scaled):
    """Its forward is that of Scaled."""


class Around(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1  # type: ignore[no-any-return]


def ninefold(self: Scaled, x: torch.Tensor) -> torch.Tensor:
    return x * self.p * 9


def keyword(self: Scaled, y: torch.Tensor, factor: float = 5.0) -> torch.Tensor:
    return y * self.p * factor


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def test_another_forward_of_the_class(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Scaled()
    with accelerate({"net": module}, strict()) as accelerated:
        torch.testing.assert_close(module(X), X * 2)
        with monkeypatch.context() as patches:
            patches.setattr(Scaled, "forward", ninefold)
            for _ in range(2):
                torch.testing.assert_close(module(X), X * 18)
            module.p.add_(1)
            torch.testing.assert_close(module(X), X * 27)
            statistics = accelerated.stats()["net"]
            assert (statistics["captures"], statistics["calls"], statistics["fallbacks"]) == (2, 4, {})
        torch.testing.assert_close(module(X), X * 3)
        assert accelerated.stats()["net"]["captures"] == 2, "the first graph is still known"
    torch.testing.assert_close(module(X), X * 3)
    assert "forward" not in vars(module)


def test_a_forward_with_other_parameters(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Scaled()
    with accelerate({"net": module}, strict()) as accelerated:
        module(X)
        monkeypatch.setattr(Scaled, "forward", keyword)
        torch.testing.assert_close(module(y=X, factor=4.0), X * 8)
        assert accelerated.stats()["net"]["calls"] == 2


def test_a_forward_that_says_nothing_of_its_parameters_is_pytorchs(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Scaled()
    with accelerate({"net": module}, strict()):
        module(X)
        monkeypatch.setattr(Scaled, "forward", torch.neg)  # a function of C is not bound
        torch.testing.assert_close(module(X), -X)


def test_another_class(strict: Strict) -> None:
    module = Scaled()
    with accelerate({"net": module}, strict()) as accelerated:
        module(X)
        for cls, expected in ((Shifted, X * 2 + 3), (Halved, X * 2), (Scaled, X * 2)):
            module.__class__ = cls
            torch.testing.assert_close(module(X), expected)
        assert accelerated.stats()["net"]["calls"] == 4
    module.__class__ = Shifted
    torch.testing.assert_close(module(X), X * 2 + 3)


def test_before_the_first_call(strict: Strict) -> None:
    module = Scaled()
    with accelerate({"net": module}, strict()):
        module.__class__ = Shifted
        torch.testing.assert_close(module(X), X * 2 + 3)


def test_a_forward_on_the_instance_is_its_own_whatever_its_class_has(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Scaled()
    module.forward = lambda x: x * module.p + 7  # type: ignore[assignment]
    with accelerate({"net": module}, strict()):
        module(X)
        monkeypatch.setattr(Scaled, "forward", ninefold)
        torch.testing.assert_close(module(X), X * 2 + 7)
        module.__class__ = Shifted
        torch.testing.assert_close(module(X), X * 2 + 7)
    torch.testing.assert_close(module(X), X * 2 + 7)


@pytest.mark.parametrize("names", [("inner",), ("outer",), ("inner", "outer"), ("outer", "inner")])
def test_of_a_module_inside_another(strict: Strict, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    module = Around()
    modules = {"inner": module.inner, "outer": module}
    with accelerate({name: modules[name] for name in names}, strict()):
        torch.testing.assert_close(module(X), X * 2 + 1)
        monkeypatch.setattr(Scaled, "forward", ninefold)
        torch.testing.assert_close(module(X), X * 18 + 1)
        monkeypatch.undo()
        torch.testing.assert_close(module(X), X * 2 + 1)
        module.inner.__class__ = Shifted
        torch.testing.assert_close(module(X), X * 2 + 4)


def test_what_holds_the_replacement_calls_the_new_forward_after_the_restore(
    strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Scaled()
    with accelerate({"net": module}, strict()):
        held = module.forward
    monkeypatch.setattr(Scaled, "forward", ninefold)
    torch.testing.assert_close(held(X), X * 18)


def test_copies_and_files_have_the_new_forward(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module, file = Scaled(), io.BytesIO()
    with accelerate({"net": module}, strict()):
        module(X)
        module.__class__ = Shifted
        duplicate = copy.deepcopy(module)
        torch.save(module, file)
        file.seek(0)
        for each in (duplicate, torch.load(file, weights_only=False)):
            each.p.mul_(2)
            torch.testing.assert_close(each(X), X * 4 + 3)
        torch.testing.assert_close(module(X), X * 2 + 3)


def test_in_pytorch_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where OpenVINO cannot answer, the new forward does."""
    module = Scaled()
    with accelerate({"net": module}, Settings(precision="f32", cache_dir=str(tmp_path))), torch.enable_grad():
        module(X)
        monkeypatch.setattr(Scaled, "forward", ninefold)
        torch.testing.assert_close(module(X).detach(), X * 18)
