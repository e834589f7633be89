"""LoRAs of every kind, by the built-in extension and by LyCORIS: pictures with and without the script agree (f32).

LyCORIS is the extension a1111-sd-webui-lycoris in the folder that WEBUI_EXTENSIONS names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.e2e.client import WebUI, psnr
from tests.integration.e2e.extensions import beside_weights, use, with_lora, write_lora
from tests.integration.e2e.helpers import A1111, ALL, host_of, need, options, picture_by_pytorch

BESIDE = "UNet by its blocks, VAE, text encoder"
KINDS = ("lora", "convolutions", "three factors", "dora", "loha", "lokr", "ia3", "full", "oft", "glora", "norm")


@pytest.fixture(autouse=True)
def no_network_ran_in_pytorch(webui: WebUI) -> Any:
    before = webui.fallbacks()
    yield
    assert not webui.fallbacks() - before


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind(kind: str, webui: WebUI, compare: Any, sd1: str, tmp_path: Path) -> None:
    use(webui, sd1)
    name = write_lora(webui, tmp_path, kind)
    without, _ = compare(checkpoint=sd1)
    with_it, _ = compare(checkpoint=sd1, prompt=with_lora(name, 0.8))
    changes = psnr(without.images[0], with_it.images[0]) < 60
    need(changes or host_of(webui) == A1111, f"LoRA of the kind {kind}: its own picture, too, is the one without")
    assert changes, f"{kind} changes nothing"
    other_size = {"checkpoint": sd1, "width": 192, "height": 96 + 8 * KINDS.index(kind)}  # is traced while the LoRA is set
    compare(**other_size, prompt=with_lora(name, 0.8))
    after, _ = compare(checkpoint=sd1)
    assert psnr(without.images[0], after.images[0]) == float("inf")


@pytest.mark.parametrize("kind", ["convolutions", "loha", "norm"])
def test_a_kind_beside_the_weights(kind: str, webui: WebUI, compare: Any, sd1: str, tmp_path: Path) -> None:
    use(webui, sd1)
    prompt = with_lora(write_lora(webui, tmp_path, kind), 0.8)
    compare(beside_weights(webui, BESIDE), checkpoint=sd1, prompt=prompt, **options(lora_functional=True))
    compare(checkpoint=sd1, prompt=prompt)
    compare(checkpoint=sd1)


@pytest.fixture
def lycoris(webui: WebUI) -> WebUI:
    need("lyco_functional" in webui.settings, "extension LyCORIS (WEBUI_EXTENSIONS names a folder with it)")
    return webui


def test_lycoris_own_tag_beside_the_built_in_extension(lycoris: WebUI, compare: Any, sd1: str, tmp_path: Path) -> None:
    """The built-in extension takes out of the weights what LyCORIS wrote; beside the weights it is computed."""
    use(lycoris, sd1)
    name = write_lora(lycoris, tmp_path)
    without = picture_by_pytorch(lycoris, sd1)
    merged, _ = compare(checkpoint=sd1, prompt=with_lora(name, tag="lyco"))
    assert psnr(without, merged.images[0]) == float("inf")
    beside, _ = compare(BESIDE, checkpoint=sd1, prompt=with_lora(name, tag="lyco"), **options(lyco_functional=True))
    assert psnr(without, beside.images[0]) < 60
    compare(checkpoint=sd1)


def test_both_extensions_with_a_lora_each(lycoris: WebUI, compare: Any, sd1: str, tmp_path: Path) -> None:
    use(lycoris, sd1)
    names = [write_lora(lycoris, tmp_path, kind, seed) for kind, seed in (("lora", 5), ("loha", 6))]
    prompt = f"{with_lora(names[0])} <lyco:{names[1]}:0.7>"
    beside = beside_weights(lycoris, BESIDE)
    for settings, expected in ({}, ALL), ({"lyco_functional": True}, BESIDE), ({"lora_functional": True}, beside):
        compare(expected, checkpoint=sd1, prompt=prompt, **options(**settings))
    both = options(lora_functional=True, lyco_functional=True)
    compare(BESIDE, checkpoint=sd1, prompt=prompt, **both)
    compare(checkpoint=sd1)
