"""Hooks of accelerate and diffusers on a network, put there before or after: they run as they stand, and the rest in OpenVINO."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ov_backend import Settings, accelerate
from tests.helpers.diffusers_families import FAMILIES
from tests.helpers.networks import seeded
from tests.helpers.torch_compile import agree

hooks = pytest.importorskip("accelerate.hooks")
offloading = pytest.importorskip("accelerate")
Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.first(x).relu())


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.out = torch.nn.ModuleList([Block(), Block()]), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Doubling(hooks.ModelHook):  # type: ignore[misc]
    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        return (args[0] * 2,), kwargs

    def post_forward(self, module: Any, output: Any) -> Any:
        return output + 1


def aligned(net: torch.nn.Module, **options: Any) -> None:
    hooks.add_hook_to_module(net, hooks.AlignDevicesHook(execution_device="cpu", **options))


def counting(net: torch.nn.Module) -> None:
    forward, count = net.forward, [0]

    def call(x: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return forward(x) + count[0]

    net.forward = call


def partially_applied(net: torch.nn.Module) -> None:
    forward = net.forward

    @functools.wraps(forward)
    def call(scale: float, x: torch.Tensor) -> torch.Tensor:
        return forward(x * scale)

    net.forward = functools.partial(call, 3.0)


def grouped(net: torch.nn.Module, kind: str) -> None:
    diffusers = pytest.importorskip("diffusers.hooks")
    if not hasattr(diffusers, "apply_group_offloading"):
        pytest.skip("this diffusers has no group offloading")
    cpu, sizes = torch.device("cpu"), {"num_blocks_per_group": 1} if kind == "block_level" else {}
    diffusers.apply_group_offloading(net, onload_device=cpu, offload_device=cpu, offload_type=kind, **sizes)


def cast_by_layers(net: torch.nn.Module) -> None:
    diffusers = pytest.importorskip("diffusers.hooks")
    if not hasattr(diffusers, "apply_layerwise_casting"):
        pytest.skip("this diffusers does not cast by layers")
    diffusers.apply_layerwise_casting(net, storage_dtype=torch.float16, compute_dtype=torch.float32)


HOOKS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "a hook that computes": lambda net: hooks.add_hook_to_module(net, Doubling()),
    "two hooks": lambda net: [hooks.add_hook_to_module(net, Doubling(), append=True) for _ in range(2)],
    "a hook inside": lambda net: hooks.add_hook_to_module(net.blocks[0], Doubling()),
    "devices": lambda net: aligned(net, io_same_device=True),
    "weights on meta": lambda net: aligned(net, offload=True, place_submodules=True),
    "model offload": lambda net: offloading.cpu_offload_with_hook(net, execution_device="cpu"),
    "sequential offload": lambda net: offloading.cpu_offload(net, execution_device="cpu"),
    "group offload by blocks": lambda net: grouped(net, "block_level"),
    "group offload by leaves": lambda net: grouped(net, "leaf_level"),
    "casting by layers": cast_by_layers,
    "a counter": counting,
    "an argument given before": partially_applied,
}


@pytest.fixture(params=["before", "after"])
def hooked(request: pytest.FixtureRequest, strict: Strict) -> Iterator[Callable[[Any], tuple[Any, Any, Any]]]:
    """Makes a network with a hook, its twin in PyTorch, and what has accelerated it."""
    made = []

    def make(hook: Callable[[torch.nn.Module], Any]) -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        net = Net().eval().requires_grad_(False)
        twin = copy.deepcopy(net)
        hook(twin)
        if request.param == "before":
            hook(net)
        made.append(accelerate({"net": net}, strict(fallback="pytorch", precision="f32")))
        if request.param == "after":
            hook(net)
        return net, twin, made[0]

    with torch.no_grad():
        yield make
    for each in made:
        each.restore()


@pytest.mark.parametrize("name", HOOKS)
def test_what_lies_below_a_hook_runs_in_openvino(name: str, hooked: Callable[[Any], tuple[Any, Any, Any]]) -> None:
    net, twin, accelerated = hooked(HOOKS[name])
    for _ in range(2):
        agree(net(X), twin(X))
    compiles = accelerated.stats()["net"]["compiles"]
    agree(net(X), twin(X))
    stats = accelerated.stats()["net"]
    assert (stats["calls"], stats["fallbacks"]) == (3, {})
    assert stats["compiles"] == compiles > 0, "weights that come back with the same content need no compile"
    assert not any(word in reason for reason in stats["by_blocks"] for word in ("Error", "_apply", "0x"))
    accelerated.restore()
    agree(net(X), twin(X))


def test_blocks_beside_a_hook_run_in_openvino_too(hooked: Callable[[Any], tuple[Any, Any, Any]]) -> None:
    net, twin, accelerated = hooked(lambda net: counting(net.blocks[0]))
    for calls in (1, 2, 3):
        agree(net(X), twin(X))
        stats = accelerated.stats()["net"]
        assert (stats["calls"], stats["block_calls"], stats["fallbacks"]) == (calls, 2 * calls, {})


def test_weights_that_a_hook_brings_are_read(hooked: Callable[[Any], tuple[Any, Any, Any]]) -> None:
    kept: list[dict[str, torch.Tensor]] = []

    def offload(net: torch.nn.Module) -> None:
        kept.append({name: weight.clone() for name, weight in net.state_dict().items()})
        offloading.cpu_offload(net, execution_device="cpu", state_dict=kept[-1])

    net, twin, _ = hooked(offload)
    agree(net(X), twin(X))
    before = net(X)
    for weights in kept:
        weights["out.weight"].mul_(3)
    agree(net(X), twin(X))
    assert not torch.equal(net(X), before)


def test_a_copy_of_a_hooked_network_answers(hooked: Callable[[Any], tuple[Any, Any, Any]]) -> None:
    net, twin, _ = hooked(HOOKS["devices"])
    agree(copy.deepcopy(net)(X), twin(X))


def test_a_hook_that_is_removed_leaves_the_network_accelerated_until_it_is_restored(strict: Strict) -> None:
    net = Net().eval()
    expected = net(X)
    for _ in range(2):
        aligned(net)
        with accelerate({"net": net}, strict(precision="f32")) as accelerated:
            hooks.remove_hook_from_module(net)
            agree(net(X), expected)
            assert accelerated.stats()["net"]["calls"] == 1
        assert net.forward == Net.forward.__get__(net)


def flux() -> Any:
    """Flux with blocks between the first and the last, and its draw."""
    family = FAMILIES["Flux"]()
    small = family.pipe.transformer
    family.pipe.transformer = seeded(type(small).from_config({**small.config, "num_layers": 3, "num_single_layers": 3}), 1)
    return family.pipe, lambda **more: torch.from_numpy(family.draws[0](**{"num_inference_steps": 8, **more})).contiguous()


@pytest.mark.parametrize("cache", ["FirstBlockCacheConfig", "MagCacheConfig"])
def test_a_cache_of_blocks_is_not_compiled_anew_in_each_picture(cache: str, strict: Strict) -> None:
    caches = pytest.importorskip("diffusers.hooks")
    ratios = {"num_inference_steps": 8, "mag_ratios": [1.0] * 8, "retention_ratio": 0.1}
    pipe, draw = flux()
    pipe.transformer.enable_cache(getattr(caches, cache)(threshold=0.2, **(ratios if cache == "MagCacheConfig" else {})))
    expected, compiles = draw(), []
    with accelerate(pipe, strict(precision="f32", fallback="pytorch")) as accelerated:
        for _ in range(6):
            agree(draw(), expected)
            compiles.append(accelerated.stats()["transformer"]["compiles"])
    assert compiles[3] == compiles[5], "what the hooks keep changes at every step"


def test_an_offloaded_model_is_compiled_once_whenever_its_hooks_came(strict: Strict) -> None:
    net, other = torch.nn.Linear(512, 512).requires_grad_(False), Net().requires_grad_(False)
    x = torch.linspace(-1, 1, 1024).reshape(2, 512)
    expected = net(x)
    with accelerate({"net": net, "other": other}, strict(precision="f32")) as accelerated:
        for i in range(3):
            agree(net(x), expected)
            for parameter in net.parameters():  # as a hook that moves a model away and back
                parameter.data = parameter.data.clone()
            other(X.repeat(i + 1, 1))  # what is compiled for weights that are gone is evicted before a compile
        assert accelerated.stats()["net"]["compiles"] == 1


def test_a_scale_of_loras_that_is_given_in_the_call_is_heeded(strict: Strict) -> None:
    lora = pytest.importorskip("peft").LoraConfig(r=4, init_lora_weights=False, target_modules=["to_q", "to_k", "to_v"])
    pipe, draw = flux()
    pipe.transformer.add_adapter(lora)
    few = {"num_inference_steps": 2}
    expected = {scale: draw(joint_attention_kwargs={"scale": scale}, **few) for scale in (1.0, 0.25)}
    assert (expected[1.0] - expected[0.25]).abs().max() > 0.01
    with accelerate(pipe, strict(precision="f32", fallback="pytorch")):
        for scale in (1.0, 0.25, 1.0):
            agree(draw(joint_attention_kwargs={"scale": scale}, **few), expected[scale])
