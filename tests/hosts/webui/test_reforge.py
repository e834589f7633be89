"""The host reForge: its UNet's dicts, what extensions put into them, attention, and weights."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.hosts.webui.patch_points import HostNetwork


class UNet(torch.nn.Module):
    """Takes tensors out of the lists in ``control``, and writes to ``transformer_options``, as reForge's does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def _forward(
        self,
        x: torch.Tensor,
        timesteps: Any = None,
        context: Any = None,
        y: Any = None,
        control: Any = None,
        transformer_options: Any = None,
    ) -> torch.Tensor:
        transformer_options["original_shape"] = list(x.shape)
        h = self.first(x) + context.sum() + timesteps[:, None]
        for name in ("input", "output"):
            if control is not None and control.get(name):
                residual = control[name].pop()
                h = h if residual is None else h + residual
        for patch in transformer_options.get("patches", {}).get("output_block_patch", ()):
            h = patch(h, transformer_options)
        return self.second(h)


def call_of(step: int, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one step, as reForge passes them."""
    given = {"sigmas": torch.tensor([1.0 / (step + 1)] * 2), "cond_or_uncond": [0, 1], "uuids": [object()], "wrappers": {}}
    control = {"input": [torch.randn(2, 4), None], "output": [torch.randn(2, 4)], "middle": []}
    return (torch.randn(2, 4), torch.full((2,), 900.0 - step), torch.randn(2, 3, 4), None, control, {**given, **options}), {}


@pytest.fixture
def reforge(_webui: SimpleNamespace) -> Any:
    from ov_backend.hosts.webui.reforge import HOST

    return HOST


def place_of(reforge: Any, unet: UNet) -> HostNetwork:
    """The network as it is called at the patch point of reForge's UNet."""
    point = next(point for point in reforge.patch_points if point.function == "_forward")
    return HostNetwork.at(point, unet, "unet")


def test_a_unet_is_one_graph_whatever_a_steps_dicts_hold(reforge: Any, strict: Callable[..., Settings]) -> None:
    unet = UNet()
    place = place_of(reforge, unet)
    network = Engine(strict()).network("unet", unet, place.bound(UNet._forward))
    for step in range(3):
        args, kwargs = call_of(step)
        lists = {name: list(tensors) for name, tensors in args[4].items()}
        inputs, named = place.arguments(args, kwargs)
        result = network(*inputs, **named)
        assert {name: len(tensors) for name, tensors in args[4].items()} == {name: len(each) for name, each in lists.items()}
        torch.testing.assert_close(result, unet._forward(*args, **kwargs))
    assert (network.statistics.compiles, network.statistics.calls) == (1, 3)


def test_a_call_without_control_is_another_graph(reforge: Any, strict: Callable[..., Settings]) -> None:
    unet = UNet()
    place = place_of(reforge, unet)
    network = Engine(strict()).network("unet", unet, place.bound(UNet._forward))
    for control in (None, {}, {"input": [], "output": []}, {"input": [torch.randn(2, 4)]}, None):
        args, _ = call_of(0)
        args = (*args[:4], control, args[5])
        inputs, named = place.arguments(args, {})
        torch.testing.assert_close(network(*inputs, **named), unet._forward(*args))
    assert network.statistics.compiles == 2


@pytest.mark.parametrize(
    "options,names",
    [
        ({}, ""),
        ({"patches": {}, "patches_replace": {"attn1": {}}}, ""),
        ({"patches": {"output_block_patch": [len], "attn1_patch": []}}, "output_block_patch"),
        ({"patches_replace": {"attn2": {("input", 1, 0): len}}}, "attn2"),
        ({"tile": torch.ones(2)}, "tile"),
        ({"group_norm_wrapper": len}, "group_norm_wrapper"),
    ],
    ids=str,
)
def test_what_extensions_put_into_a_call_is_named(reforge: Any, options: dict[str, Any], names: str) -> None:
    reason = reforge.refusal(place_of(reforge, UNet()), *call_of(0, **options))
    assert bool(reason) == bool(names)
    assert names in reason


def test_weights_that_are_changed_at_each_call_of_a_layer_are_left_alone(reforge: Any) -> None:
    unet = UNet()
    place = place_of(reforge, unet)
    assert not reforge.refusal(place)
    unet.first.weight_function = [lambda weight: weight * 2]  # type: ignore[assignment]
    assert "at each call of a layer" in reforge.refusal(place)
    assert reforge.hooks(place).block_refusal(unet.first)
    assert not reforge.hooks(place).block_refusal(unet.second)


_SLICED = """
import torch
def attention_pytorch(q, k, v): return "whole"
def attention_sub_quad(q, k, v): return "sliced"
optimized_attention = optimized_attention_masked = attention_sub_quad
def slice_attention(q, k, v): return torch.bmm(v, torch.softmax(torch.bmm(q, k) * q.shape[-1] ** -0.5, 2).transpose(1, 2))
"""


@pytest.fixture
def ldm_patched(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Two modules of the names of reForge's, with one function for each of those that are exchanged in a trace."""
    modules = []
    for name in ("attention", "diffusionmodules.model"):
        module: Any = types.ModuleType(f"ldm_patched.ldm.modules.{name}")
        module.__file__ = str(tmp_path / f"{name}.py")
        exec(compile(_SLICED, module.__file__, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        modules.append(module)
    return modules


def test_attention_is_in_one_piece_in_a_trace_only(reforge: Any, ldm_patched: Any) -> None:
    unet, vae = ldm_patched
    q, k, v = torch.randn(2, 6, 4), torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    expected, sliced = vae.slice_attention(q, k, v), vae.slice_attention
    with reforge.hooks(place_of(reforge, UNet())).tracing():
        assert unet.optimized_attention(q, k, v) == unet.optimized_attention_masked(q, k, v) == "whole"
        assert vae.slice_attention is not sliced
        torch.testing.assert_close(vae.slice_attention(q, k, v), expected)
    assert unet.optimized_attention(q, k, v) == "sliced"
    assert vae.slice_attention is sliced


def test_another_extensions_attention_stays_in_a_trace(reforge: Any, ldm_patched: Any) -> None:
    unet, vae = ldm_patched
    unet.optimized_attention = vae.slice_attention = own = lambda q, k, v: "another"
    with reforge.hooks(place_of(reforge, UNet())).tracing():
        assert unet.optimized_attention is own
        assert vae.slice_attention is own
        assert unet.optimized_attention_masked(1, 2, 3) == "whole"


def test_a_job_of_reforge_has_a_runner_without_scripts(reforge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules import scripts

    monkeypatch.setattr(scripts, "ScriptRunner", lambda: "empty")
    assert reforge.runner() == "empty"
