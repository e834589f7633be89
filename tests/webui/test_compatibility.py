"""What changes the networks from outside: followed where it can be, PyTorch with the reason where not."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from tests.helpers import networks
from tests.webui.conftest import ALL, TITLE, arguments, ran, words, worst

NO_UNET = ("UNet in PyTorch", "VAE", "text encoder")


def unet(host: SimpleNamespace) -> Any:
    return host.shared.sd_model.model.diffusion_model


def test_tiling_and_back(compare: Any) -> None:
    pictures = [compare(prompt="a cat", tiling=tiling)[1] for tiling in (False, True, False)]
    assert worst(pictures[0], pictures[1]) > 2
    assert worst(pictures[0], pictures[2]) == 0


def test_hypernetwork_on_half_off(compare: Any, host: SimpleNamespace) -> None:
    from modules.hypernetworks.hypernetwork import Hypernetwork

    pictures = [compare(prompt="a cat")[1]]
    hypernetwork = Hypernetwork("h", (networks.CONTEXT, 64))
    host.shared.loaded_hypernetworks.append(hypernetwork)
    for strength in (1.0, 0.3):
        hypernetwork.set_multiplier(strength)
        pictures.append(compare(prompt="a cat")[1])
    host.shared.loaded_hypernetworks[:] = [Hypernetwork("h", (networks.CONTEXT, 64), seed=5)]  # another file of that name
    pictures.append(compare(prompt="a cat")[1])
    host.shared.loaded_hypernetworks.clear()
    pictures.append(compare(prompt="a cat")[1])
    assert min(worst(a, b) for a, b in pairwise(pictures)) > 2
    assert worst(pictures[0], pictures[4]) == 0


def test_loras_that_do_not_touch_weights(compare: Any) -> None:
    fields = {"prompt": "a cat <lora:first:1>", "override_settings": {"lora_functional": True}}
    _, on = compare(("UNet in PyTorch", "VAE", "text encoder in PyTorch"), **fields)
    assert "LoRAs are computed beside the weights" in on.comments
    compare(prompt="a cat")


def test_another_extension_s_unet(compare: Any, host: SimpleNamespace) -> None:
    class Other:
        option = SimpleNamespace(label="Other UNet")

        def forward(self, x: torch.Tensor, timesteps: Any, context: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 0.5 * x

    host.sd_unet.current_unet = Other()
    _, on = compare(NO_UNET, prompt="a cat")
    assert "Other UNet" in on.comments
    host.sd_unet.current_unet = None
    compare(prompt="a cat")


def test_instance_forward_is_never_traced_over(compare: Any, host: SimpleNamespace) -> None:
    """As ControlNet: its forward on the instance, and after it the class's own function left behind there."""
    plain, _ = compare(prompt="a cat")
    original = unet(host).forward
    unet(host).forward = lambda *args, **kwargs: 0.3 * original(*args, **kwargs)
    other, on = compare(NO_UNET, prompt="a cat")
    assert worst(plain, other) > 2
    assert "put a forward of its own" in on.comments
    left = unet(host).forward = original
    compare(prompt="a cat")
    assert vars(unet(host))["forward"] is left, "what the other extension left there is put back"
    del unet(host).forward


def test_instance_forward_put_on_in_mid_run(compare: Any, host: SimpleNamespace) -> None:
    """An extension that takes hold of our function while it is in place may restore it long after."""
    from modules import script_callbacks

    held = []

    def hold(params: Any) -> None:
        if not held:
            held.append(unet(host).forward)

    script_callbacks.on_cfg_denoiser(hold)
    try:
        compare(prompt="a cat")
        on = host.processing.generate(TITLE, arguments(), prompt="a dog")
    finally:
        script_callbacks.callbacks["cfg_denoiser"].remove(hold)
    assert ran(on) == words(*ALL)
    unet(host).forward = held[0]
    compare(prompt="a cat")
    del unet(host).forward


def test_token_merging_is_left_to_pytorch(compare: Any, host: SimpleNamespace) -> None:
    unet(host)._tome_info = {"args": {"ratio": 0.5}, "hooks": [object()]}
    _, on = compare(NO_UNET, prompt="a cat")
    assert "token merging" in on.comments
    unet(host)._tome_info["hooks"].clear()  # all that its removal does to it
    compare(prompt="a cat")


def test_hypertile_is_left_to_pytorch_while_it_is_on(compare: Any, host: SimpleNamespace) -> None:
    layer = next(m for m in unet(host).modules() if type(m).__name__ == "CrossAttention")
    layer.__webui_hypertile_params = SimpleNamespace(enabled=True)
    _, on = compare(NO_UNET, prompt="a cat")
    assert "HyperTile" in on.comments
    layer.__webui_hypertile_params.enabled = False
    compare(prompt="a cat")
    del layer.__webui_hypertile_params


def test_upcast_attention(compare: Any) -> None:
    compare(prompt="a cat", override_settings={"upcast_attn": True})


def test_attention_is_traced_in_one_piece(compare: Any, host: SimpleNamespace) -> None:
    """The host slices attention to save memory; the graph does not."""
    from ov_backend.webui.session import session

    compare(prompt="a cat", width=64, height=64)
    assert session.engine is not None
    graphs = [program for program, _ in session.engine.resources.programs._held.values()]
    operators = [{op.get_type_name() for op in p.whole.model.get_ops()} for p in graphs if p.whole is not None]
    assert any("ScaledDotProductAttention" in ops for ops in operators)
