"""LoRAs by the built-in extension and by LyCORIS, whose functions stand on the same layers: same picture, in OpenVINO."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.hosts.webui.conftest import TITLE, arguments, largest_difference, ran

LORA = "a cat <lora:first:1>"
BESIDE = ("UNet by its blocks", "VAE", "text encoder in PyTorch")


@pytest.fixture
def lycoris(host: SimpleNamespace) -> Iterator[Any]:
    """LyCORIS, loaded after the built-in extension: the same functions once more, around the built-in one's."""
    from ov_backend.hosts.webui.session import session

    spec = importlib.util.spec_from_file_location("l_networks", host.networks.__file__)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["l_networks"] = module
    spec.loader.exec_module(module)
    module.SETTING = "lyco_functional"
    load = module.load_networks

    def load_networks(tags: list[tuple[str, float]]) -> None:
        """In the WebUI they are named in the prompt, so other networks mean that it is encoded anew."""
        load(tags)
        host.processing.StableDiffusionProcessing.cached_c[:] = [None, None]
        host.processing.StableDiffusionProcessing.cached_uc[:] = [None, None]
        session.forget_conditionings()

    module.load_networks = load_networks
    module.patch_classes()
    try:
        yield module
    finally:
        module.unpatch_classes()
        del sys.modules["l_networks"]


def test_a_lora_of_the_built_in_extension_beside_lycoris(compare: Any, lycoris: Any) -> None:
    """A size that is new while the LoRA is set: LyCORIS takes it out at every call of a layer, and the other writes it again."""
    size = {"width": 96, "height": 64}
    first, _ = compare(prompt=LORA, **size)
    weaker, _ = compare(prompt="a cat <lora:first:0.5>", **size)
    without, _ = compare(prompt="a cat", **size)
    assert min(largest_difference(first, other) for other in (weaker, without)) > 2
    assert largest_difference(weaker, without) > 2


def test_what_lycoris_sets_is_taken_out_by_the_built_in_extension(compare: Any, host: SimpleNamespace, lycoris: Any) -> None:
    without, _ = compare(prompt="a cat")
    lycoris.load_networks([("first", 1.0)])
    same, _ = compare(prompt="a cat")
    assert largest_difference(without, same) == 0


def test_lycoris_alone_writes_into_the_weights(compare: Any, host: SimpleNamespace, lycoris: Any) -> None:
    lycoris.unpatch_classes()
    host.networks.unpatch_classes()
    lycoris.patch_classes()
    without, _ = compare(prompt="a cat")
    lycoris.load_networks([("first", 1.0)])
    compare(prompt="a cat", width=96, height=64)
    again, _ = compare(prompt="a cat")
    assert largest_difference(without, again) > 2
    lycoris.load_networks([])
    assert largest_difference(without, compare(prompt="a cat")[1]) <= 1


def test_lycoris_beside_the_weights_with_a_lora_in_them(compare: Any, host: SimpleNamespace, lycoris: Any) -> None:
    functional = {"override_settings": {"lyco_functional": True}}
    both = {"prompt": LORA, **functional}
    one, _ = compare(**both)
    lycoris.load_networks([("second", 0.6)])
    two, on = compare(BESIDE, **both)
    assert "LoRAs are computed beside the weights" in on.comments
    assert largest_difference(one, two) > 2
    compare(BESIDE, prompt="a cat", **functional)
    compare(prompt=LORA)


def test_another_function_around_the_layers_hides_no_lora(compare: Any, host: SimpleNamespace, lycoris: Any) -> None:
    forward = torch.nn.Linear.forward
    torch.nn.Linear.forward = lambda self, x: forward(self, x)  # type: ignore[method-assign, assignment]
    try:
        without, _ = compare(prompt="a cat")
        changed = host.processing.generate(prompt=LORA)
        on = host.processing.generate(TITLE, arguments(), prompt=LORA)  # what is traced now reads backups, and is left to PyTorch
        assert "VAE" in ran(on)
        assert largest_difference(changed, on) <= 1
        assert largest_difference(without, changed) > 2
    finally:
        torch.nn.Linear.forward = forward  # type: ignore[method-assign]
