"""The stand-in for the WebUI, started once; every test gets it with checkpoint "a", no LoRA and default settings."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend.ui.choices import SWITCHES

ROOT = Path(__file__).parents[3]
TITLE = "Accelerate with OpenVINO"


def _k_diffusion() -> None:
    """Import k-diffusion's samplers without its package's ``__init__``, which imports training code and torchvision."""
    spec = importlib.util.find_spec("k_diffusion")
    assert spec is not None
    package = types.ModuleType("k_diffusion")
    package.__path__ = list(spec.submodule_search_locations or [])
    sys.modules["k_diffusion"] = package
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets")
    stubs = {name: types.ModuleType(name) for name in names if importlib.util.find_spec("torchvision") is None}
    for name, stub in stubs.items():  # for this import only: other code asks whether the package is installed
        sys.modules[name] = stub
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(stubs[parent], child, stub)
    importlib.import_module("k_diffusion.sampling")
    for name in stubs:
        del sys.modules[name]


def start_host(cache: Path) -> SimpleNamespace:
    """Make the WebUI's modules importable, and load the extension's scripts as the WebUI loads them."""
    _k_diffusion()
    sys.path.append(str(Path(__file__).parent / "host"))
    import networks
    from modules import processing, scripts, sd_hijack, sd_models, sd_unet, shared

    scripts.initialize([ROOT])
    if "ov_backend.hosts.webui.webui_host" in sys.modules:  # it is not without OpenVINO
        from ov_backend.hosts.webui.session import session
        from ov_backend.hosts.webui.webui_host import webui_host

        webui_host.cache_dir = session.cache_dir = str(cache)
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
def _webui(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return start_host(tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def host(_webui: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The stand-in with its classes patched as the WebUI patches them; the test must leave no patch of ours behind."""
    _webui.sd_hijack.patch_classes()
    _webui.networks.patch_classes()
    opts = _webui.shared.opts
    before, data, labels = dict(vars(opts)), dict(opts.data), dict(opts.data_labels)
    opts.openvino_prepare_ahead = False  # but in the tests of it: another thread would compile meanwhile
    try:
        _webui.sd_models.reload_model_weights("a")
        originals = functions()
        yield _webui
        from ov_backend.core.tracing_lock import LOCK

        with LOCK:  # an abandoned trace ends first
            pass
        time.sleep(0.05)
        assert functions() == originals, "a patch is left behind"
    finally:
        for name in ("forward", "_tome_info"):
            vars(_webui.shared.sd_model.model.diffusion_model).pop(name, None)
        vars(opts).clear()
        vars(opts).update({**before, "data": data, "data_labels": labels})
        _webui.shared.loaded_hypernetworks.clear()
        _webui.sd_unet.current_unet = None
        _webui.networks.unpatch_classes()
        _webui.sd_hijack.unpatch_classes()
        _webui.processing.StableDiffusionProcessing.cached_c[:] = [None, None]
        _webui.processing.StableDiffusionProcessing.cached_uc[:] = [None, None]


def functions() -> dict[str, Any]:
    """Every function that the extension may patch, by name."""
    from modules import processing

    from ov_backend.hosts.webui.detect import host

    points = [point for point in host.patch_points if point.owner is not None]
    originals = {f"{point.module}.{point.class_name}": vars(point.owner)[point.function] for point in points}
    originals["process_images_inner"] = processing.process_images_inner
    originals["Module.__call__"] = torch.nn.Module.__call__
    attention = sys.modules["ldm.modules.attention"].CrossAttention  # type: ignore[attr-defined]
    return {**originals, "attention": attention.forward}


def arguments(precision: str = "f32", **switches: bool) -> list[Any]:
    """The script's arguments."""
    return ["CPU", precision, *(switches.get(name, True) for name in SWITCHES), True, 0, "", "auto"]


def text_encoder_is_supported() -> bool:
    """Whether the installed transformers lets the text encoder be compiled."""
    from ov_backend.hosts.webui.detect import host

    return all(point.owner is not None for point in host.patch_points if point.module.startswith("transformers."))


def ran_text(*labels: str) -> str:
    """What the picture's field should say of what ran where; the text encoder in PyTorch where it is not supported."""
    unsupported = {} if text_encoder_is_supported() else {"text encoder": "text encoder in PyTorch"}
    return ", ".join(unsupported.get(label, label) for label in labels)


ALL = ("UNet", "VAE", "text encoder")


def ran(processed: Any) -> str:
    """What ran where, by the first picture's field; "" where there is no field."""
    field = processed.infotexts[0].rpartition("OpenVINO: ")[2] if "OpenVINO: " in processed.infotexts[0] else ""
    return field.strip('"').partition(";")[0].partition('"')[0].removeprefix("ran=")


def largest_difference(a: Any, b: Any) -> int:
    """The largest difference of any pixel of two generations, 0 to 255."""
    assert [image.size for image in a.images] == [image.size for image in b.images]
    pairs = zip(a.images, b.images)
    return max(int(np.abs(np.array(x).astype(int) - np.array(y).astype(int)).max()) for x, y in pairs)


@pytest.fixture
def compare(host: SimpleNamespace) -> Callable[..., tuple[Any, Any]]:
    """Generate without the script and with it; the pictures must agree, and the field must say what ran where."""

    def run(expected: tuple[str, ...] = ALL, **fields: Any) -> tuple[Any, Any]:
        off = host.processing.generate(**fields)
        on = host.processing.generate(TITLE, arguments(), **fields)
        assert np.array(on.images[0]).std() > 5, "the picture is flat"
        assert largest_difference(off, on) <= 1
        assert ran(off) == ""
        assert ran(on) == ran_text(*expected)
        return off, on

    return run


def engine_stats() -> dict[str, Any]:
    """Statistics of the engine that all generations share."""
    from ov_backend.hosts.webui.session import session

    assert session.engine is not None
    return session.engine.stats()


@contextlib.contextmanager
def before_every_step(callback: Callable[[Any], None]) -> Iterator[None]:
    """Call ``callback`` with the WebUI's parameters before every step in this block."""
    from modules import script_callbacks

    script_callbacks.on_cfg_denoiser(callback)
    try:
        yield
    finally:
        script_callbacks.callbacks["cfg_denoiser"].remove(callback)
