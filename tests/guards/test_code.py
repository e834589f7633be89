"""Whatever a forward reads may change between two calls; the next answer is PyTorch's all the same.

Every case is a module and a change of something that its forward can read. After the change OpenVINO's answer must be the eager
one; that PyTorch gives it counts as right.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from tests.helpers.readers import (
    Child,
    Colour,
    Hook,
    InList,
    Object,
    Options,
    Parent,
    Scaled,
    Slotted,
    WithProperty,
    X,
    assert_eager,
)
from tests.helpers.small import engine_for
from tests.helpers.walks import no_walks

Strict = Callable[..., Settings]


KEPT = Object()
OPTIONS = types.SimpleNamespace(scale=2.0, other=1)
NUMBERS = [2.0, 3.0]
TABLE = {"scale": 2.0}
TENSORS = [torch.full((4,), 2.0)]
TENSOR = torch.full((4,), 2.0)
CONSTANT = 2.0


def helper() -> float:
    return 2.0


def other_helper() -> float:
    return 5.0


def closure(value: Any) -> Callable[[torch.nn.Module], Any]:
    return lambda module: value


def read_helper(module: torch.nn.Module) -> float:
    return helper()


def read_decorated(module: torch.nn.Module) -> Any:
    return decorated(module)


@torch.no_grad()
def decorated(module: Any) -> Any:
    return module.scale


def assign(target: Any, name: Any, value: Any) -> Callable[[], None]:
    def change() -> None:
        if isinstance(target, (dict, list)):
            target[name] = value
        else:
            setattr(target, name, value)

    return change


def case(module: torch.nn.Module, change: Callable[[torch.nn.Module], Any]) -> tuple[torch.nn.Module, Callable[..., Any]]:
    return module, change


def _hooked(module: torch.nn.Module) -> None:
    module.linear.register_forward_hook(lambda m, args, result: result + 1)


def _global_hook(module: torch.nn.Module) -> Any:
    return torch.nn.modules.module.register_module_forward_hook(
        lambda m, args, result: result * 3 if isinstance(m, torch.nn.Linear) else None
    )


def _with_default() -> Callable[..., Any]:
    def scaled(*, scale: Any = types.SimpleNamespace(value=2.0)) -> Any:  # noqa: B008 -- the case is about it
        return scale

    return scaled


def _with_hook() -> tuple[torch.nn.Module, Callable[[Any], Any]]:
    module, hook = Scaled(lambda m: 1.0), Hook()
    module.linear.register_forward_hook(hook)
    return module, assign(hook, "scale", 7.0)


def _missing_option() -> float:
    try:
        return 2.0 if OPTIONS.missing is None else 3.0
    except AttributeError:
        return 4.0


CASES: dict[str, Callable[[], tuple[torch.nn.Module, Callable[..., Any]]]] = {
    "an attribute read by a decorated function": lambda: case(
        Scaled(read_decorated, scale=2.0),
        lambda m: setattr(m, "scale", 3.0),
    ),
    "an attribute of options that was missing and is None": lambda: case(
        Scaled(lambda m: _missing_option()), lambda m: setattr(OPTIONS, "missing", None)
    ),
    "an attribute read by name": lambda: case(
        Scaled(lambda m: getattr(m, "scale"), scale=2.0),  # noqa: B009
        lambda m: setattr(m, "scale", 3.0),
    ),
    "an attribute read by a property": lambda: case(WithProperty(), lambda m: setattr(m, "_scale", 3.0)),
    "an attribute that only the parent reads": lambda: case(Parent(), lambda m: setattr(m.child, "strength", 3.0)),
    "an attribute of a class": lambda: case(Scaled(lambda m: Child.scale), lambda m: setattr(Child, "scale", 3.0)),
    "a dataclass": lambda: case(Scaled(lambda m: m.o.scale, o=Options()), lambda m: setattr(m.o, "scale", 3.0)),
    "a dataclass in a dataclass": lambda: case(
        Scaled(lambda m: m.o.inner.scale, o=Options(inner=Options())), lambda m: setattr(m.o.inner, "scale", 3.0)
    ),
    "an enum": lambda: case(Scaled(lambda m: m.o.value, o=Colour.RED), lambda m: setattr(m, "o", Colour.BLUE)),
    "a numpy scalar": lambda: case(Scaled(lambda m: float(m.o), o=np.float32(2)), lambda m: setattr(m, "o", np.float32(3))),
    "a numpy array": lambda: case(Scaled(lambda m: float(m.o[1]), o=np.ones(3)), lambda m: m.o.__setitem__(1, 4.0)),
    "a namespace": lambda: case(Scaled(lambda m: m.o.s, o=types.SimpleNamespace(s=2.0)), lambda m: setattr(m.o, "s", 3.0)),
    "an object with slots": lambda: case(Scaled(lambda m: m.o.scale, o=Slotted()), lambda m: setattr(m.o, "scale", 3.0)),
    "an object with a method": lambda: case(Scaled(lambda m: m.o.strength(), o=Object()), lambda m: setattr(m.o, "scale", 3.0)),
    "a method of an object's class": lambda: case(
        Scaled(lambda m: m.o.strength(), o=Object()), lambda m: setattr(Object, "strength", lambda self: 9.0)
    ),
    "a dict in a dict": lambda: case(Scaled(lambda m: m.o["a"]["b"], o={"a": {"b": 2.0}}), lambda m: m.o["a"].update(b=3.0)),
    "a list in a tuple": lambda: case(Scaled(lambda m: m.o[0][0], o=([2.0],)), lambda m: m.o[0].__setitem__(0, 3.0)),
    "a deque": lambda: case(Scaled(lambda m: m.o[0], o=collections.deque([2.0])), lambda m: m.o.__setitem__(0, 3.0)),
    "a set": lambda: case(Scaled(lambda m: float("a" in m.o) + 1, o={"a"}), lambda m: m.o.discard("a")),
    "a closure's cell": lambda: case(Scaled(closure(2.0)), lambda m: setattr(m.read.__closure__[0], "cell_contents", 3.0)),
    "a partial's argument": lambda: case(
        Scaled(functools.partial(lambda s, m: s[0], [2.0])),
        lambda m: m.read.args[0].__setitem__(0, 3.0),
    ),
    "a global number": lambda: case(Scaled(lambda m: CONSTANT), lambda m: assign(globals(), "CONSTANT", 3.0)()),
    "a global list": lambda: case(Scaled(lambda m: NUMBERS[0]), lambda m: assign(NUMBERS, 0, 8.0)()),
    "a global dict": lambda: case(Scaled(lambda m: TABLE["scale"]), lambda m: assign(TABLE, "scale", 8.0)()),
    "a global object": lambda: case(Scaled(lambda m: OPTIONS.scale), lambda m: assign(OPTIONS, "scale", 8.0)()),
    "a global function": lambda: case(Scaled(read_helper), lambda m: assign(globals(), "helper", other_helper)()),
    "a default of a function, read and not called": lambda: case(
        Scaled(lambda m: m.get.__kwdefaults__["scale"].value, get=_with_default()),
        lambda m: setattr(m.get, "__kwdefaults__", {"scale": types.SimpleNamespace(value=5.0)}),
    ),
    "a value in a default of a function, read and not called": lambda: case(
        Scaled(lambda m: m.get.__kwdefaults__["scale"].value, get=_with_default()),
        lambda m: setattr(m.get.__kwdefaults__["scale"], "value", 5.0),
    ),
    "a hook that is added": lambda: case(Scaled(lambda m: 2.0), _hooked),
    "the same hook's state": _with_hook,
    "a tensor in a list": lambda: case(Scaled(lambda m: m.t[0], t=[torch.ones(4)]), lambda m: m.t[0].mul_(3)),
    "another tensor in a list": lambda: case(
        Scaled(lambda m: m.t[0], t=[torch.ones(4)]),
        lambda m: m.t.__setitem__(0, torch.full((4,), 3.0)),
    ),
    "a tensor in a dict in an object": lambda: case(
        Scaled(lambda m: m.o.inner["t"], o=Options(inner={"t": torch.ones(4)})), lambda m: m.o.inner["t"].mul_(3)
    ),
    "a tensor in a closure": lambda: case(Scaled(closure(torch.ones(4))), lambda m: m.read.__closure__[0].cell_contents.mul_(3)),
    "a global tensor": lambda: case(Scaled(lambda m: TENSOR), lambda m: TENSOR.mul_(3)),
    "a tensor in a global list": lambda: case(
        Scaled(lambda m: TENSORS[0]),
        lambda m: assign(TENSORS, 0, torch.full((4,), 5.0))(),
    ),
    "a module in a list": lambda: case(InList(), lambda m: m.hidden[0].weight.mul_(2)),
    "a bias of a module in a list that was not there": lambda: case(
        InList(bias=False),
        lambda m: setattr(m.hidden[0], "bias", torch.nn.Parameter(torch.ones(4))),
    ),
    "a number of a module in a list": lambda: case(
        InList(),
        lambda m: m.hidden.__setitem__(0, torch.nn.Linear(4, 4, bias=False)),
    ),
    "a weight written through numpy": lambda: case(
        Scaled(lambda m: 1.0),
        lambda m: m.linear.weight.detach().numpy().__setitem__((2, 1), 5),
    ),
    "a dict whose method is kept": lambda: case(
        Scaled(lambda m: m.get("scale"), get={"scale": 2.0}.get), lambda m: m.get.__self__.update(scale=3.0)
    ),
    "a weight transposed where it lies": lambda: case(
        Scaled(lambda m: 1.0),
        lambda m: setattr(m.linear.weight, "data", m.linear.weight.data.t()),
    ),
    "a weight that asks for gradients": lambda: case(
        Scaled(lambda m: 2.0 if m.linear.weight.requires_grad else 3.0),
        lambda m: m.linear.weight.requires_grad_(False),
    ),
    "a weight written through .data in one place": lambda: case(
        Scaled(lambda m: 1.0),
        lambda m: m.linear.weight.data[3].fill_(4),
    ),
}


@pytest.fixture(autouse=True)
def _restored() -> Any:
    """What the cases change outside their modules is put back."""
    names = ("CONSTANT", "helper")
    before = {name: globals()[name] for name in names}
    strength, scale, tensor = Object.strength, Child.scale, TENSOR.clone()
    hooks = dict(torch.nn.modules.module._global_forward_hooks)
    yield
    globals().update(before)
    Object.strength, Child.scale = strength, scale  # type: ignore[method-assign]
    vars(OPTIONS).pop("missing", None)
    NUMBERS[0], TABLE["scale"], OPTIONS.scale, TENSORS[0] = 2.0, 2.0, 2.0, torch.full((4,), 2.0)
    TENSOR.copy_(tensor)
    torch.nn.modules.module._global_forward_hooks.clear()
    torch.nn.modules.module._global_forward_hooks.update(hooks)


@pytest.mark.parametrize("what", CASES)
def test_the_answer_follows(strict: Strict, what: str) -> None:
    module, change = CASES[what]()
    network = engine_for(strict(), module)
    for _ in range(2):
        assert_eager(network, module)
    before = module(X)
    change(module) if change.__code__.co_argcount else change()
    assert_eager(network, module)
    assert_eager(network, module)
    assert not torch.equal(module(X), before), "the case changes nothing"


def test_unpatched_cases_are_answered_by_openvino(strict: Strict) -> None:
    module = Scaled(lambda m: m.o.scale * OPTIONS.scale, o=Options())
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert (network.statistics.calls, network.statistics.captures) == (1, 1)
    OPTIONS.other = 5
    assert_eager(network, module)
    assert network.statistics.captures == 1, "an attribute that nobody reads is no reason to trace anew"
    OPTIONS.other = 1


def test_a_patched_function_of_torch_counts(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Scaled(lambda m: torch.nn.functional.relu(m.t), t=torch.ones(4))
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    original = torch.nn.functional.relu
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x, inplace=False: original(x) * 4)
    assert_eager(network, module)
    assert "torch.nn.functional.relu was replaced" in next(iter(network.statistics.fallbacks))


def test_a_replaced_function_of_torch_that_is_no_operator_does_not_count(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", helper)  # as the WebUI does
    module = Scaled(lambda module: 2.0)
    assert_eager(engine_for(strict(), module), module)


def test_a_hook_for_all_modules_counts(strict: Strict) -> None:
    module = Scaled(lambda m: 2.0)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert not network.statistics.fallbacks
    _global_hook(module)
    assert_eager(network, module)
    assert list(network.statistics.fallbacks) == ["a hook for all modules of the process is registered"]


def test_the_default_dtype_is_part_of_a_call(strict: Strict) -> None:
    module = Scaled(lambda m: torch.tensor([1.1]).double().mean().float())
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    try:
        torch.set_default_dtype(torch.float64)
        assert_eager(network, module)
    finally:
        torch.set_default_dtype(torch.float32)


def test_two_networks_of_one_engine_share_nothing_by_mistake(strict: Strict) -> None:
    engine = Engine(strict())
    modules = [Scaled(lambda m: m.t[0], t=[torch.full((4,), float(value))]) for value in (1, 2)]
    networks = [engine.network(f"net {i}", module) for i, module in enumerate(modules)]
    for network, module in zip(networks, modules):
        assert_eager(network, module)


def test_an_attribute_on_a_weight_stays_in_pytorch_for_a_trace_does_not_see_it(strict: Strict) -> None:
    module = Scaled(lambda m: getattr(m.linear.weight, "scale", 2.0))
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1
    module.linear.weight.scale = 3.0  # type: ignore[assignment]
    assert_eager(network, module)
    assert network.statistics.calls == 1


class Doubling(torch.autograd.Function):
    """Has a base class that is written in C, whose name is another string at every look."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_an_unchanged_class_that_is_written_in_c_is_looked_at_and_no_more(strict: Strict) -> None:
    module = Scaled(lambda m: Doubling.scale)
    Doubling.scale = 2.0  # type: ignore[attr-defined]
    network = engine_for(strict(), module)
    assert_eager(network, module)
    with no_walks():
        assert_eager(network, module)
    Doubling.scale = 3.0  # type: ignore[attr-defined]
    assert_eager(network, module)


RENAMED: dict[str, Callable[[torch.nn.Module], Any]] = {
    "a key": lambda m: (m.table.clear(), m.table.update(other=True)),
    "an attribute": lambda m: (delattr(m, "flag"), setattr(m, "mark", True)),
    "the shape of an array": lambda m: setattr(m.array, "shape", (2, 1)),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_name_counts_although_its_value_stays(strict: Strict, name: str) -> None:
    def read(m: Any) -> float:
        return 2.0 + ("scale" in m.table) + 2 * hasattr(m, "flag") + 4 * len(m.array)

    module = Scaled(read, table={"scale": True}, flag=True, array=np.zeros((1, 2)))
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    RENAMED[name](module)
    assert_eager(network, module)
