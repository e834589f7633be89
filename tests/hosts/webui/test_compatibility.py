"""Extensions and settings that change what a network computes: same picture, in PyTorch with the reason where needed."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ov_backend.model.runtime.program import Program
from tests.helpers import networks
from tests.hosts.webui.conftest import (
    ALL,
    TITLE,
    arguments,
    before_every_step,
    engine_stats,
    largest_difference,
    ran,
    ran_text,
)

NO_UNET = ("UNet in PyTorch", "VAE", "text encoder")
BLOCKS = ("UNet by its blocks", "VAE", "text encoder")


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


def test_attention_whose_code_was_exchanged_is_followed(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules import sd_hijack_optimizations as optimizations

    def scaled(self: Any, x: Any, context: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        return scaled_dot_product_attention_forward(self, x, context) * -9  # type: ignore[name-defined]  # noqa: F821

    before = compare(prompt="a cat")[1]
    monkeypatch.setattr(optimizations.split_cross_attention_forward, "__code__", scaled.__code__)
    assert largest_difference(before, compare(prompt="a cat")[1]) > 2


def test_what_attention_calls_is_followed(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in one piece calls it another number of times."""
    from einops._backends import AbstractBackend

    before, reshape = compare(prompt="a cat")[1], AbstractBackend.reshape
    monkeypatch.setattr(AbstractBackend, "reshape", lambda self, x, shape: reshape(self, x, shape) * 1.1)
    assert largest_difference(before, compare(prompt="a cat")[1]) > 2
    monkeypatch.undo()
    assert largest_difference(before, compare(prompt="a cat")[1]) == 0


@pytest.mark.parametrize("class_name", ["CrossAttention", "AttnBlock"])
def test_whether_attention_is_as_usual_is_tried_without_a_trace_of_it(
    host: SimpleNamespace, class_name: str
) -> None:
    from ov_backend.hosts.webui.a1111 import attention

    place = next(each for each in attention._CLASSES if each[1] == class_name and attention._owner(each) is not None)
    owner, whole = attention._owner(place), getattr(attention.optimizations, place[2])
    state, seen = torch.get_rng_state(), list[Any]()

    def computes(layer: Any, x: torch.Tensor) -> torch.Tensor:
        assert torch.equal(torch.get_rng_state(), state), "a generation in another thread draws its noise from it"
        return whole(layer, x)

    assert attention._computes_the_same(owner, computes)
    assert torch.equal(torch.get_rng_state(), state)
    assert not attention._computes_the_same(owner, lambda layer, x: whole(layer, x) * 1.01)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: seen.append(args))
    try:
        assert not attention._computes_the_same(owner, whole)
    finally:
        handle.remove()
    assert not seen, "a hook for all modules would have seen the small layer"


def test_a_scale_of_attention_that_was_changed_is_followed(
    compare: Any, host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention in one piece takes the usual scale, so this one is traced as the WebUI computes it."""
    before = compare(prompt="a cat")[1]
    unet = host.shared.sd_model.model.diffusion_model
    layer = next(each for each in unet.modules() if hasattr(each, "scale") and hasattr(each, "to_q"))
    monkeypatch.setattr(layer, "scale", layer.scale * 30)
    assert largest_difference(before, compare(prompt="a cat")[1]) > 2
    monkeypatch.undo()
    assert largest_difference(before, compare(prompt="a cat")[1]) == 0


def test_a_function_that_the_lora_extension_calls_and_that_was_exchanged_is_followed(
    compare: Any, host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compare(prompt="a cat")[1]
    own = host.networks._forward
    monkeypatch.setattr(host.networks, "_forward", lambda layer, x, original: own(layer, x, original) * 0.9)
    assert largest_difference(before, compare(prompt="a cat")[1]) > 2
    monkeypatch.undo()
    assert largest_difference(before, compare(prompt="a cat")[1]) == 0


def test_a_function_that_was_put_among_the_webui_s_attention_is_not_exchanged(host: SimpleNamespace) -> None:
    from modules import sd_hijack_optimizations as optimizations

    from ov_backend.hosts.webui.a1111 import attention

    def foreign() -> None: ...

    module = ModuleType("sd_hijack_optimizations")
    vars(module).update(vars(optimizations), split_cross_attention_forward=foreign)
    codes = attention._codes_of(module)
    assert foreign.__code__ not in codes
    assert optimizations.scaled_dot_product_attention_forward.__code__ in codes


def test_layers_with_loras_computed_beside_the_weights_are_left_to_pytorch(compare: Any) -> None:
    fields = {"prompt": "a cat <lora:first:1>", "override_settings": {"lora_functional": True}}
    compare(prompt="a dog <lora:first:1>")  # now the weights hold it
    _, on = compare(("UNet by its blocks", "VAE", "text encoder in PyTorch"), **fields)
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


def test_what_a_forward_on_the_instance_wraps_is_answered_by_blocks(compare: Any, host: SimpleNamespace) -> None:
    """Afterwards ControlNet leaves the class's own function on the instance."""
    without, _ = compare(prompt="a cat")
    original = unet(host).forward
    unet(host).forward = lambda *args, **kwargs: 0.3 * original(*args, **kwargs)
    other, _ = compare(BLOCKS, prompt="a cat")
    assert largest_difference(without, other) > 2
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


def test_a_forward_on_the_instance_is_answered_by_blocks(compare: Any, host: SimpleNamespace) -> None:
    """ControlNet's forward calls the blocks one by one, and adds residuals of a network of its own."""
    without, _ = compare(prompt="a cat")
    controlnet = ControlNet()
    unet(host).forward = lambda x, timesteps=None, context=None, **_: controlled(unet(host), controlnet, x, timesteps, context)
    before = engine_stats()["unet"]
    for _ in range(2):
        other, on = compare(BLOCKS, prompt="a cat")
    assert largest_difference(without, other) > 2
    assert "UNet by its blocks: another extension put a forward of its own on it" in on.comments
    stats = engine_stats()
    assert (stats["unet"]["fallbacks"], stats["controlnet"]["fallbacks"]) == (before["fallbacks"], {})
    assert stats["controlnet"]["calls"] == stats["unet"]["calls"] - before["calls"]
    assert [name for name, module in unet(host).named_modules() if "forward" in vars(module)] == [""]
    del unet(host).forward
    compare(prompt="a cat")
    assert "controlnet" not in engine_stats(), "a network of another extension is released once it is no longer used"


def test_a_network_of_an_extension_that_cannot_be_traced_runs_its_own_forward(compare: Any, host: SimpleNamespace) -> None:
    controlnet = Untraceable()
    unet(host).forward = lambda x, timesteps=None, context=None, **_: controlled(unet(host), controlnet, x, timesteps, context)
    try:
        compare(BLOCKS, prompt="a cat")
    finally:
        del unet(host).forward


class ControlNet(torch.nn.Module):
    """Latents [B, 4, H, W] -> what is added after the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(8, 64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Untraceable(ControlNet):
    """Its code depends on a tensor's values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (0.5 if float(x.std()) > 0.1 else 2.0)


def controlled(unet: Any, controlnet: ControlNet, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> Any:
    """The loop of ldm's UNet with residuals."""
    from ldm.modules.diffusionmodules.util import timestep_embedding

    emb = unet.time_embed(timestep_embedding(timesteps, unet.model_channels, repeat_only=False))
    h, skipped = x, []
    for i, block in enumerate(unet.input_blocks):
        h = block(h, emb, context)
        if i == 0:
            h = h + controlnet(x)
        skipped.append(h)
    h = unet.middle_block(h, emb, context)
    for block in unet.output_blocks:
        h = block(torch.cat([h, skipped.pop()], dim=1), emb, context)
    return unet.out(h)


def test_token_merging_is_left_to_pytorch(compare: Any, host: SimpleNamespace) -> None:
    info = {"args": {"ratio": 0.5}, "hooks": [object()]}
    blocks = [m for m in unet(host).modules() if type(m).__name__ == "BasicTransformerBlock"]
    for module in (unet(host), *blocks):
        module._tome_info = info
    _, on = compare(BLOCKS, prompt="a cat")
    assert "token merging" in on.comments
    info["hooks"].clear()  # this is all that removing token merging does
    compare(prompt="a cat")
    for block in blocks:
        del block._tome_info


def test_hypertile_is_left_to_pytorch_while_it_is_on(compare: Any, host: SimpleNamespace) -> None:
    layer = next(m for m in unet(host).modules() if type(m).__name__ == "CrossAttention")
    layer.__webui_hypertile_params = parameters = SimpleNamespace(enabled=True)
    try:
        _, on = compare(BLOCKS, prompt="a cat")
        assert "HyperTile" in on.comments
    finally:
        parameters.enabled = False
    compare(prompt="a cat")
    del layer.__webui_hypertile_params


def test_prompts_that_an_extension_has_marked_are_encoded_again(host: SimpleNamespace) -> None:
    """ControlNet marks encoded prompts in place, and then replaces the WebUI's own cache of them."""
    processing = host.processing.StableDiffusionProcessing
    clean = host.processing.generate(TITLE, arguments(), prompt="a marked cat")

    def mark(params: Any) -> None:
        processing.cached_c = [None, None]

    own = processing.cached_c
    with before_every_step(mark):
        host.processing.generate(TITLE, arguments(), prompt="a marked cat")
    processing.cached_c = own
    assert session_conditionings() == {}
    assert largest_difference(clean, host.processing.generate(TITLE, arguments(), prompt="a marked cat")) == 0


def session_conditionings() -> Any:
    from ov_backend.hosts.webui.session import session

    return session._conditionings


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
