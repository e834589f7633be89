"""A deleted model frees its weights and what was compiled of them, as it does with PyTorch's own backends."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.helpers.lifetimes import ALIVE, Lives, eventually
from tests.helpers.small import Small, inputs
from tests.helpers.torch_compile import Compile, agree, calls, total


class Counting(Small):
    """As Small; it writes to a buffer, so it goes through AOTAutograd."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return super().forward(x, ids)


def left_by_eager(make: type[Small], reset: bool = False, **options: Any) -> set[str]:
    """What eager PyTorch under Dynamo leaves behind: torch 2.1 keeps modules in its graphs, also after a reset."""
    module = make()
    lives = Lives(module)
    torch.compile(module, backend="eager", **options)(*inputs())
    del module
    if reset:
        torch._dynamo.reset()
    left = lives.left()
    torch._dynamo.reset()
    return left


def use(model: Any, module: Small, *sizes: int) -> Lives:
    """Call a compiled model once for each height; its answers are the module's."""
    for height in sizes:
        agree(model(*inputs(height)), module(*inputs(height)))
    return Lives(module)


@pytest.mark.parametrize("make", [Small, Counting], ids=["a graph that only computes", "a graph that writes"])
def test_a_deleted_model_frees_its_weights_and_what_was_compiled(compiled: Compile, make: type[Small]) -> None:
    expected = left_by_eager(make)
    module = make()
    model = compiled(module)
    lives = use(model, module, 8, 12)
    assert total("held") >= 2
    assert lives.left() == ALIVE
    del model, module
    assert eventually(lambda: lives.left() <= expected), f"left behind: {lives.left()}"
    assert expected or eventually(lambda: not total("held")), "compiled graphs outlive the model"


def test_a_deleted_model_with_dynamic_shapes_is_freed(compiled: Compile) -> None:
    expected = left_by_eager(Small, dynamic=True)
    module = Small()
    model = compiled(module, dynamic=True, dynamic_shapes=True)
    lives = use(model, module, 8, 12)
    del model, module
    assert eventually(lambda: lives.left() <= expected), f"left behind: {lives.left()}"
    assert expected or eventually(lambda: not total("held")), "compiled graphs outlive the model"


def test_after_a_reset_nothing_of_a_deleted_model_is_left(compiled: Compile) -> None:
    expected = left_by_eager(Small, reset=True)
    module = Small()
    model = compiled(module)
    lives = use(model, module, 8)
    del model, module
    torch._dynamo.reset()
    assert lives.left() <= expected
    assert not total("held")


def test_a_model_of_which_parts_stay_in_pytorch_is_freed_too() -> None:
    expected = left_by_eager(Small)
    module = Small()
    options = {"disabled_ops": ["aten.addmm"], "fallback": "raise", "precision": "f32"}
    model = torch.compile(module, backend="openvino_fx", dynamic=False, options=options)
    lives = use(model, module, 8)
    del model, module
    assert eventually(lambda: lives.left() <= expected), f"left behind: {lives.left()}"


def test_the_other_instance_of_a_class_goes_on(compiled: Compile) -> None:
    expected = left_by_eager(Small)
    first, second = Small(seed=1), Small(seed=2)
    models = [compiled(first), compiled(second)]
    lives = use(models[0], first, 8)
    use(models[1], second, 8)
    models.pop(0)
    del first
    assert eventually(lambda: lives.left() <= expected), f"left behind: {lives.left()}"
    assert expected or eventually(lambda: total("held") == 1)
    compiles, before = total("compiles"), calls()
    use(models[0], second, 8)
    assert (total("compiles"), calls()) == (compiles, before + 1), "what is compiled of a living model stays"


def test_a_replaced_weight_is_freed(compiled: Compile) -> None:
    module = Small()
    model = compiled(module)
    use(model, module, 8)
    storage = StorageWeakRef(module.matrix.weight.untyped_storage())
    module.matrix.weight = torch.nn.Parameter(torch.randn_like(module.matrix.weight))
    use(model, module, 8)
    assert eventually(lambda: (gc.collect(), storage.expired())[1]), "the old weight is kept alive"
    assert eventually(lambda: total("held") == 1)
