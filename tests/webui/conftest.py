"""The stand-in host, started once for the session; every test gets it with checkpoint "a", no LoRA and default settings."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TITLE = "Accelerate with OpenVINO"


def _k_diffusion() -> None:
    """k-diffusion's samplers without its package's __init__, which imports training code, and without torchvision."""
    spec = importlib.util.find_spec("k_diffusion")
    assert spec is not None
    package = types.ModuleType("k_diffusion")
    package.__path__ = list(spec.submodule_search_locations or [])
    sys.modules["k_diffusion"] = package
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets")
    stubs = {name: types.ModuleType(name) for name in names if importlib.util.find_spec("torchvision") is None}
    for name, stub in stubs.items():  # only for this import: others ask whether the package is there
        sys.modules[name] = stub
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(stubs[parent], child, stub)
    importlib.import_module("k_diffusion.sampling")
    for name in stubs:
        del sys.modules[name]


def start_host(cache: Path) -> SimpleNamespace:
    """The WebUI's modules, importable from now on, and the extension's scripts loaded as the WebUI loads them."""
    _k_diffusion()
    sys.path.append(str(Path(__file__).parent / "host"))
    import networks
    from modules import processing, scripts, sd_hijack, sd_models, sd_unet, shared

    scripts.initialize([ROOT])
    with_openvino = "ov_backend.webui.generation" in sys.modules
    if with_openvino:
        import ov_backend.webui.generation as generation

        generation.CACHE_DIR = cache
    return SimpleNamespace(
        processing=processing,
        scripts=scripts,
        shared=shared,
        sd_models=sd_models,
        sd_hijack=sd_hijack,
        sd_unet=sd_unet,
        networks=networks,
    )


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return start_host(tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def host(_started: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The stand-in with its classes patched as the WebUI patches them; afterwards nothing may be left in place."""
    _started.sd_hijack.patch_classes()
    _started.networks.patch_classes()
    before = dict(vars(_started.shared.opts))
    try:
        _started.sd_models.reload_model_weights("a")
        originals = functions()
        yield _started
        assert functions() == originals, "something is left in place"
    finally:
        for name in ("forward", "_tome_info"):
            vars(_started.shared.sd_model.model.diffusion_model).pop(name, None)
        vars(_started.shared.opts).clear()
        vars(_started.shared.opts).update(before)
        _started.shared.loaded_hypernetworks.clear()
        _started.sd_unet.current_unet = None
        _started.networks.unpatch_classes()
        _started.sd_hijack.unpatch_classes()
        _started.processing.StableDiffusionProcessing.cached_c[:] = [None, None]
        _started.processing.StableDiffusionProcessing.cached_uc[:] = [None, None]


def functions() -> dict[str, Any]:
    """Every function that the extension may put another in place of."""
    from modules import processing

    from ov_backend.webui.patch_points import ENTRIES

    found = {f"{e.module}.{e.name}": vars(e.owner)[e.function] for e in ENTRIES if e.owner is not None}
    found["process_images_inner"] = processing.process_images_inner
    attention = sys.modules["ldm.modules.attention"].CrossAttention  # type: ignore[attr-defined]
    return {**found, "attention": attention.forward}


def arguments(precision: str = "f32", **switches: bool) -> list[Any]:
    """The script's arguments."""
    kinds = [switches.get(name, True) for name in ("unet", "vae", "text_encoder")]
    return ["CPU", precision, *kinds, True, 0, ""]


def words(*kinds: str) -> str:
    """What ran, as the picture's field says it; the text encoder where this transformers lets it be compiled."""
    from ov_backend.webui.patch_points import ENTRIES

    possible = all(entry.owner is not None for entry in ENTRIES if entry.name == "CLIPEncoder")
    return ", ".join("text encoder in PyTorch" if kind == "text encoder" and not possible else kind for kind in kinds)


ALL = ("UNet", "VAE", "text encoder")


def ran(processed: Any) -> str:
    """What the first picture's field says ran where; "" where there is no field."""
    field = processed.infotexts[0].rpartition("OpenVINO: ")[2] if "OpenVINO: " in processed.infotexts[0] else ""
    return field.strip('"').partition(";")[0].partition('"')[0].removeprefix("ran=")


def worst(a: Any, b: Any) -> int:
    """The largest difference of any pixel of two generations, 0 to 255."""
    assert [image.size for image in a.images] == [image.size for image in b.images]
    pairs = zip(a.images, b.images)
    return max(int(np.abs(np.array(x).astype(int) - np.array(y).astype(int)).max()) for x, y in pairs)


@pytest.fixture
def compare(host: SimpleNamespace) -> Callable[..., tuple[Any, Any]]:
    """Generate with the script off and on; the pictures must agree, and the field say what ran."""

    def run(expected: tuple[str, ...] = ALL, **fields: Any) -> tuple[Any, Any]:
        off = host.processing.generate(**fields)
        on = host.processing.generate(TITLE, arguments(), **fields)
        assert np.array(on.images[0]).std() > 5, "the picture is flat"
        assert worst(off, on) <= 1
        assert ran(off) == ""
        assert ran(on) == words(*expected)
        return off, on

    return run
