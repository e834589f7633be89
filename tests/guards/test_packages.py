"""What programs put into packages, and the switches that packages show, are followed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import Object, Scaled, assert_eager, assert_followed
from tests.helpers.small import engine_for


def imported(module: Any) -> float:
    import math as inside

    return float(inside.of_the_program["scale"][0])  # type: ignore[attr-defined]


def by_name(module: Any) -> float:
    return 2.0 if getattr(torch, "is_warn_always_enabled")() else 3.0  # noqa: B009


READ: dict[str, Callable[[Any], Any]] = {
    "a global": lambda m: math.of_the_program["scale"][0],  # type: ignore[attr-defined]
    "an import in the function": imported,
}


def change_item(table: Any) -> None:
    table["scale"][0] = 3.0


def many() -> dict[str, Any]:
    return {**{f"name{i}": i for i in range(300)}, "scale": [2.0]}


@pytest.mark.parametrize("how", READ)
@pytest.mark.parametrize("make", [lambda: {"scale": [2.0]}, many, lambda: {"scale": [2.0], "o": Object()}])
def test_a_container_in_a_package(
    strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, how: str, make: Callable[[], Any]
) -> None:
    table = make()
    monkeypatch.setattr(math, "of_the_program", table, raising=False)
    assert_followed(strict, Scaled(READ[how]), lambda m: change_item(table))


def test_a_tensor_in_a_package(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"scale": [torch.tensor(2.0)]}
    monkeypatch.setattr(math, "of_the_program", table, raising=False)
    assert_followed(strict, Scaled(READ["a global"]), lambda m: table["scale"][0].fill_(3.0))


SWITCHES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "an object's attribute": (
        lambda m: 2.0 if torch.backends.cuda.matmul.allow_tf32 else 3.0,
        lambda m: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda m: setattr(torch.backends.cuda.matmul, "allow_tf32", False),
    ),
    "a function in C": (
        lambda m: 2.0 if torch._C._get_warnAlways() else 3.0,
        lambda m: torch.set_warn_always(True),
        lambda m: torch.set_warn_always(False),
    ),
    "how numbers are printed": (
        lambda m: float(torch._tensor_str.PRINT_OPTS.precision),
        lambda m: torch.set_printoptions(precision=7),
        lambda m: torch.set_printoptions(precision=4),
    ),
    "a fuser of torch.jit": (
        lambda m: 2.0 if torch._C._jit_texpr_fuser_enabled() else 3.0,
        lambda m: torch._C._jit_set_texpr_fuser_enabled(False),
        lambda m: torch._C._jit_set_texpr_fuser_enabled(True),
    ),
    "how modules are converted": (
        lambda m: 2.0 if torch.__future__.get_overwrite_module_params_on_conversion() else 3.0,
        lambda m: torch.__future__.set_overwrite_module_params_on_conversion(True),
        lambda m: torch.__future__.set_overwrite_module_params_on_conversion(False),
    ),
    "a function by its name": (by_name, lambda m: torch.set_warn_always(True), lambda m: torch.set_warn_always(False)),
}


@pytest.mark.parametrize("what", SWITCHES)
def test_a_switch_of_torch(strict: Callable[..., Settings], what: str) -> None:
    read, change, back = SWITCHES[what]
    try:
        assert_followed(strict, Scaled(read), change)
    finally:
        back(None)


OF_THREAD: dict[str, Callable[[], Any]] = {
    "the profiler": lambda: torch.autograd._profiler_enabled(),  # type: ignore[attr-defined]
    "threads of autograd": lambda: torch._C._is_multithreading_enabled(),
    "views": lambda: torch._C._is_view_replay_enabled(),
    "what vmap falls back to": lambda: torch._C._functorch._is_vmap_fallback_enabled(),
}


@pytest.mark.parametrize("what", OF_THREAD)
def test_a_switch_of_the_thread_stays_in_pytorch(strict: Callable[..., Settings], what: str) -> None:
    module = Scaled(lambda m: 2.0 if OF_THREAD[what]() else 3.0)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0
    assert "thread" in next(iter(network.statistics.fallbacks))
