"""Mutations of a module as a whole (hooks, its forward, its children), and of the state of the process."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.soundness import values
from tests.soundness.weights import Undo

Change = Callable[[], Undo]


def of_a_module(module: torch.nn.Module, path: str) -> Iterator[tuple[str, str, Change]]:
    """Names, kinds and changes."""
    for how, add in _HOOKS.items():
        yield f"{path}: {how}", "hook", functools.partial(_added, module, add)
    yield f"{path}: a forward of its own", "instance method", functools.partial(_forward, module)
    yield f"{path}: another class", "module", functools.partial(_class, module)
    yield f"{path}: a new attribute", "attribute", functools.partial(_attribute, module)
    yield f"{path}: a new buffer", "module", functools.partial(_table, module._buffers, "new_buffer", torch.ones(2))
    yield f"{path}: a new child", "module", functools.partial(_table, module._modules, "new_child", torch.nn.ReLU())
    yield f"{path}: weights in one sweep", "weight", functools.partial(_all_weights, module)
    yield f"{path}: load_state_dict(assign=True)", "weight", functools.partial(_assign, module)
    for name, child in list(module._modules.items()):
        if child is not None:
            for how, make in _CHILDREN.items():
                yield f"{path}.{name}: {how}", "module", functools.partial(_child, module, name, make)


def _scale(module: Any, args: Any, result: Any) -> Any:
    return values._times(result, 1.25)


def _scale_input(module: Any, args: Any) -> Any:
    return tuple(values._times(each, 1.25) for each in args)


def _scale_keywords(module: Any, args: Any, kwargs: Any, result: Any) -> Any:
    return values._times(result, 0.75)


_HOOKS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "a hook more": lambda module: module.register_forward_hook(_scale),
    "a closure as a hook": lambda module: module.register_forward_hook(functools.partial(_closure_hook, [1.5])),
    "a hook more before": lambda module: module.register_forward_pre_hook(_scale_input),
    "a hook with keywords": lambda module: module.register_forward_hook(_scale_keywords, with_kwargs=True),
    "a hook in front": lambda module: module.register_forward_hook(_scale, prepend=True),
    "a hook that sees only": lambda module: module.register_forward_hook(lambda *_: None),
}


def _closure_hook(numbers: list[float], module: Any, args: Any, result: Any) -> Any:
    return values._times(result, numbers[0])


def _added(module: torch.nn.Module, add: Callable[[torch.nn.Module], Any]) -> Undo:
    handle = add(module)
    return lambda: handle.remove()


def _forward(module: torch.nn.Module) -> Undo:
    vars(module)["forward"] = values.scaled(module.forward)
    return lambda: vars(module).pop("forward")


def _class(module: torch.nn.Module) -> Undo:
    old = type(module)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return values._times(old.forward(self, *args, **kwargs), 1.25)

    module.__class__ = type(old.__name__, (old,), {"forward": forward, "__module__": old.__module__})

    def undo() -> None:
        module.__class__ = old

    return undo


def _attribute(module: torch.nn.Module) -> Undo:
    vars(module)["an_attribute_that_nobody_reads"] = 1.5
    return lambda: vars(module).pop("an_attribute_that_nobody_reads")


def _table(table: dict[str, Any], name: str, value: Any) -> Undo:
    table[name] = value
    return lambda: table.pop(name)


def _all_weights(module: torch.nn.Module) -> Undo:
    before = [(p, p.detach().clone()) for p in module.parameters()]
    with torch.no_grad():
        for parameter, _ in before:
            parameter.data.mul_(0.9)

    def undo() -> None:
        for parameter, values_before in before:
            parameter.data.copy_(values_before)

    return undo


def _assign(module: torch.nn.Module) -> Undo:
    tables = [(each, dict(each._parameters), dict(each._buffers)) for each in module.modules()]
    state = {name: value * 1.1 if value.is_floating_point() else value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=True)

    def undo() -> None:
        for each, parameters, buffers in tables:
            each._parameters.update(parameters)
            each._buffers.update(buffers)

    return undo


def _scaled_copy(child: torch.nn.Module) -> Any:
    other = copy.deepcopy(child)
    for parameter in other.parameters():
        parameter.data.mul_(1.2)
    return other


_CHILDREN: dict[str, Callable[[torch.nn.Module], Any]] = {
    "an identity instead": lambda child: torch.nn.Identity(),
    "a copy with other weights instead": _scaled_copy,
    "a sequence around it": lambda child: torch.nn.Sequential(child, torch.nn.Tanh()),
    "none": lambda child: None,
}


def _child(module: torch.nn.Module, name: str, make: Callable[[torch.nn.Module], Any]) -> Undo:
    old = module._modules[name]
    assert old is not None
    module._modules[name] = make(old)

    def undo() -> None:
        module._modules[name] = old

    return undo


def of_the_process() -> Iterator[tuple[str, Change, bool]]:
    """State of torch that every forward reads: name, change, whether half precision is involved."""
    yield "a hook for all modules", lambda: torch.nn.modules.module.register_module_forward_hook(_scale).remove, False
    yield (
        "a hook for all modules before",
        lambda: torch.nn.modules.module.register_module_forward_pre_hook(_scale_input).remove,
        False,
    )
    yield "the default dtype", _default_dtype, False
    yield "autocast", _autocast, True


def _default_dtype() -> Undo:
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(old)


def _autocast() -> Undo:
    block = torch.autocast("cpu", dtype=torch.bfloat16)
    block.__enter__()
    return lambda: block.__exit__(None, None, None)
