"""Extensions and settings that change what a network computes: same picture, in PyTorch with the reason where needed."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ov_backend.runtime.program import Program
from tests.helpers import networks
from tests.webui.conftest import ALL, TITLE, arguments, before_every_step, largest_difference, ran, ran_text

NO_UNET = ("UNet in PyTorch", "VAE", "text encoder")


def unet(host: SimpleNamespace) -> Any:
    return host.shared.sd_model.model.diffusion_model


def test_tiling_can_be_switched_on_and_off(compare: Any) -> None:
    pictures = [compare(prompt="a cat", tiling=tiling)[1] for tiling in (False, True, False)]
    assert largest_difference(pictures[0], pictures[1]) > 2
    assert largest_difference(pictures[0], pictures[2]) == 0


def test_a_hypernetwork_follows_its_strength_and_content(compare: Any, host: SimpleNamespace) -> None:
    from modules.hypernetworks.hypernetwork import Hypernetwork

    pictures = [compare(prompt="a cat")[1]]
    hypernetwork = Hypernetwork("h", (networks.CONTEXT, 64))
    host.shared.loaded_hypernetworks.append(hypernetwork)
    for strength in (1.0, 0.3):
        hypernetwork.set_multiplier(strength)
        pictures.append(compare(prompt="a cat")[1])
    host.shared.loaded_hypernetworks[:] = [Hypernetwork("h", (networks.CONTEXT, 64), seed=5)]  # another file of the same name
    pictures.append(compare(prompt="a cat")[1])
    host.shared.loaded_hypernetworks.clear()
    pictures.append(compare(prompt="a cat")[1])
    assert min(largest_difference(a, b) for a, b in pairwise(pictures)) > 2
    assert largest_difference(pictures[0], pictures[4]) == 0


def test_loras_computed_beside_the_weights_are_left_to_pytorch(compare: Any) -> None:
    fields = {"prompt": "a cat <lora:first:1>", "override_settings": {"lora_functional": True}}
    _, on = compare(("UNet in PyTorch", "VAE", "text encoder in PyTorch"), **fields)
    assert "LoRAs are computed beside the weights" in on.comments
    compare(prompt="a cat")


def test_the_sd_unet_of_another_extension_is_left_to_pytorch(compare: Any, host: SimpleNamespace) -> None:
    class Other:
        option = SimpleNamespace(label="Other UNet")

        def forward(self, x: torch.Tensor, timesteps: Any, context: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 0.5 * x

    host.sd_unet.current_unet = Other()
    _, on = compare(NO_UNET, prompt="a cat")
    assert "Other UNet" in on.comments
    host.sd_unet.current_unet = None
    compare(prompt="a cat")


def test_a_forward_on_the_instance_is_left_to_pytorch(compare: Any, host: SimpleNamespace) -> None:
    """ControlNet puts its forward on the instance, and afterwards leaves the class's own function there."""
    without, _ = compare(prompt="a cat")
    original = unet(host).forward
    unet(host).forward = lambda *args, **kwargs: 0.3 * original(*args, **kwargs)
    other, on = compare(NO_UNET, prompt="a cat")
    assert largest_difference(without, other) > 2
    assert "put a forward of its own" in on.comments
    leftover = unet(host).forward = original
    compare(prompt="a cat")
    assert vars(unet(host))["forward"] is leftover, "the other extension's leftover is restored"
    del unet(host).forward


def test_a_forward_that_an_extension_took_in_mid_run_may_be_restored_later(compare: Any, host: SimpleNamespace) -> None:
    """An extension may save our function while it is patched in, and put it on the instance long after."""
    saved = []

    def save(params: Any) -> None:
        if not saved:
            saved.append(unet(host).forward)

    with before_every_step(save):
        compare(prompt="a cat")
        on = host.processing.generate(TITLE, arguments(), prompt="a dog")
    assert ran(on) == ran_text(*ALL)
    unet(host).forward = saved[0]
    compare(prompt="a cat")
    del unet(host).forward


def test_token_merging_is_left_to_pytorch(compare: Any, host: SimpleNamespace) -> None:
    unet(host)._tome_info = {"args": {"ratio": 0.5}, "hooks": [object()]}
    _, on = compare(NO_UNET, prompt="a cat")
    assert "token merging" in on.comments
    unet(host)._tome_info["hooks"].clear()  # this is all that removing token merging does
    compare(prompt="a cat")


def test_hypertile_is_left_to_pytorch_while_it_is_on(compare: Any, host: SimpleNamespace) -> None:
    layer = next(m for m in unet(host).modules() if type(m).__name__ == "CrossAttention")
    layer.__webui_hypertile_params = SimpleNamespace(enabled=True)
    _, on = compare(NO_UNET, prompt="a cat")
    assert "HyperTile" in on.comments
    layer.__webui_hypertile_params.enabled = False
    compare(prompt="a cat")
    del layer.__webui_hypertile_params


def test_upcast_attention_gives_the_same_picture(compare: Any) -> None:
    compare(prompt="a cat", override_settings={"upcast_attn": True})


def test_attention_is_traced_in_one_piece(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host slices attention to save memory; the graph does not."""
    operators: set[str] = set()
    original = Program.compile

    def compile_and_record(program: Program, *args: Any, **kwargs: Any) -> Any:
        operators.update(op.get_type_name() for model in program.models.values() for op in model.model.get_ops())
        return original(program, *args, **kwargs)

    monkeypatch.setattr(Program, "compile", compile_and_record)
    compare(prompt="a cat", width=72, height=64)  # no other test compiles for this size
    assert "ScaledDotProductAttention" in operators
