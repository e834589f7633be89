"""All ways to write a tensor, each with its undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

#: Puts back what a mutation changed; what it returns means nothing.
Undo = Callable[[], Any]


def writes(
    read: Callable[[], Any], write: Callable[[Any], None], use: Callable[[], None]
) -> Iterator[tuple[str, Callable[[], Undo]]]:
    """Ways to change the tensor that stands at a place, by what reads it there and what writes another object.

    ``use`` calls the accelerated network once.
    """
    tensor = read()
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        return
    in_place = _integers if not tensor.is_floating_point() else _floats
    for how, change in in_place.items():
        yield how, _written(read, change)
    for how, exchange in _EXCHANGES.items():
        yield how, _exchanged(read, write, exchange)
    yield "exchanged for an inference tensor, used, and written", _inference(read, write, use)


def _in_place(tensor: torch.Tensor) -> None:
    tensor.mul_(1.5).add_(0.01)


def _data(tensor: torch.Tensor) -> None:
    tensor.data.mul_(1.5).add_(0.01)


def _one_element(tensor: torch.Tensor) -> None:
    flat = tensor.data.view(-1)
    flat[flat.numel() // 2] += 3.0


def _copied(tensor: torch.Tensor) -> None:
    tensor.copy_(tensor.flip(0) * 2 + 0.25)


def _numpy(tensor: torch.Tensor) -> None:
    array = tensor.detach().numpy()
    array *= 1.5
    array += 0.01


def _numpy_element(tensor: torch.Tensor) -> None:
    array = tensor.detach().numpy().reshape(-1)
    array[array.size // 3] += 3.0


def _detached(tensor: torch.Tensor) -> None:
    tensor.detach().mul_(0.5)


def _foreach(tensor: torch.Tensor) -> None:
    torch._foreach_mul_([tensor], 1.5)


def _storage(tensor: torch.Tensor) -> None:
    torch.frombuffer(tensor.detach().numpy(), dtype=tensor.dtype).mul_(1.5)


def _indexed(tensor: torch.Tensor) -> None:
    tensor[(0,) * min(tensor.dim(), 1)] += 2.0


_floats: dict[str, Callable[[torch.Tensor], None]] = {
    "in place": _in_place,
    "through .data": _data,
    "one element through .data": _one_element,
    "copy_": _copied,
    "through numpy": _numpy,
    "one element through numpy": _numpy_element,
    "through detach()": _detached,
    "by _foreach_mul_": _foreach,
    "through its buffer": _storage,
    "by index": _indexed,
}
_integers: dict[str, Callable[[torch.Tensor], None]] = {
    "in place": lambda tensor: tensor.copy_(tensor.flip(-1) if tensor.dim() else tensor + 1) and None,
    "through numpy": lambda tensor: tensor.numpy().reshape(-1).__setitem__(0, 1),
}


def _written(read: Callable[[], Any], change: Callable[[torch.Tensor], None]) -> Callable[[], Undo]:
    def apply() -> Undo:
        tensor = read()
        before = tensor.detach().clone()
        with torch.no_grad():
            change(tensor)

        def undo() -> None:
            tensor.data.copy_(before)

        return undo

    return apply


def _like(old: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(values, requires_grad=False) if isinstance(old, torch.nn.Parameter) else values


def _new_values(old: torch.Tensor) -> torch.Tensor:
    return old.detach() * 1.5 + 0.01 if old.is_floating_point() else old.detach().clone()


_EXCHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "exchanged": lambda old: _like(old, _new_values(old)),
    "exchanged for an equal one": lambda old: _like(old, old.detach().clone()),
    "exchanged for one of other strides": lambda old: _like(
        old, _new_values(old).t().contiguous().t() if old.dim() == 2 else old
    ),
    "in float64": lambda old: _like(old, old.detach().double()) if old.is_floating_point() else old,
    "in bfloat16": lambda old: _like(old, old.detach().bfloat16()) if old.is_floating_point() else old,
    "of another shape": lambda old: _like(old, old.detach().repeat(2, *(1,) * (old.dim() - 1))) if old.dim() else old,
    "removed": lambda old: None,
}


def _exchanged(
    read: Callable[[], Any], write: Callable[[Any], None], exchange: Callable[[torch.Tensor], Any]
) -> Callable[[], Undo]:
    def apply() -> Undo:
        old = read()
        with torch.no_grad():
            new = exchange(old)
        write(new)
        return lambda: write(old)

    return apply


def _inference(read: Callable[[], Any], write: Callable[[Any], None], use: Callable[[], None]) -> Callable[[], Undo]:
    def apply() -> Undo:
        old = read()
        with torch.inference_mode():
            new = _like(old, old.detach().clone())
        write(new)
        use()
        with torch.inference_mode():
            new.mul_(2)
        return lambda: write(old)

    return apply


def replaced_data(read: Callable[[], Any]) -> Callable[[], Undo]:
    """``parameter.data = other``."""

    def apply() -> Undo:
        parameter = read()
        old = parameter.data
        parameter.data = _new_values(old)

        def undo() -> None:
            parameter.data = old

        return undo

    return apply
