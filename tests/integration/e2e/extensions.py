"""Other extensions in the end-to-end tests: their arguments, and files of random weights that fit the checkpoint in use."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.integration.e2e.checkpoints import save_pickled
from tests.integration.e2e.client import PROMPT, WebUI, to_png
from tests.integration.e2e.helpers import ALL, need, need_a1111, need_probe

FREEU = {
    "enable": True,
    "transition_smoothness": 0.5,
    "version": "1",
    "stage_infos": [{"backbone_factor": 1.2, "skip_factor": 0.9}, {"backbone_factor": 1.4, "skip_factor": 0.2}],
}
THRESHOLDING = [True, 7, 0.9, "Constant", 0, "Constant", 0, 4, "enable", "MEAN", "AD", 1]
CUTOFF = [True, "red", 0.5, True, False, "", "Lerp", False]
TILED_DIFFUSION = [True, "MultiDiffusion", False, True, 128, 128, 16, 16, 8, 2, "None", 1, False, 10, 1, 1, 64, *[False] * 4]

#: What comes with Forge and reForge: by the WebUI, and what it is called here, a script's title and arguments.
BUILT_IN: dict[str, dict[str, tuple[Any, ...]]] = {
    "Forge": {
        "FreeU": ("FreeU Integrated (SD 1.x, SD 2.x, SDXL)", True, 1.1, 1.2, 0.9, 0.2, 0, 1),
        "self-attention guidance": ("SelfAttentionGuidance Integrated (SD 1.x, SD 2.x, SDXL)", True, 0.5, 2.0, 1.0),
        "perturbed-attention guidance": ("PerturbedAttentionGuidance Integrated", True, 3.0),
        "Kohya HRFix": ("Kohya HRFix Integrated", True, 3, 2.0, 0, 0.35, True, "bicubic", "bicubic"),
    },
    "reForge": {
        "FreeU": ("FreeU Integrated", True, 1.1, 1.2, 0.9, 0.2),
        "self-attention guidance": ("SelfAttentionGuidance Integrated", True, 0.5, 2.0),
        "HyperTile": ("HyperTile Integrated", True, 64, 2, 0, False),
        "Kohya HRFix": ("Kohya HRFix Integrated", True, 3, 2.0, 0, 0.35, True, "bicubic", "bicubic"),
    },
}


def always_on(webui: WebUI, title: str, *arguments: Any) -> dict[str, Any]:
    """The arguments of one always-on script, as the API takes them; skips where the extension is not there."""
    names = {script["name"] for script in webui.api("/sdapi/v1/script-info")}
    need(title.lower() in names, f"extension {title!r} (WEBUI_EXTENSIONS names a folder with it)")
    return {title: {"args": list(arguments)}}


class Controlled:
    """The fields of generations with ControlNet's units: random weights that fit their checkpoint, and prepared hints."""

    def __init__(self, webui: WebUI, folder: Path, checkpoint: str) -> None:
        always_on(webui, "ControlNet")
        need_probe(webui)
        need_a1111(webui, "extension sd-webui-controlnet; its own ControlNet is in test_mixed")
        self.webui, self.folder, self.checkpoint = webui, folder, checkpoint
        use(webui, checkpoint)
        webui.set_options(control_net_models_path=str(folder))

    def model(self, name: str, **body: Any) -> str:
        """Write a network's file, and return its name in the extension's list."""
        self.webui.api("/probe/controlnet", {"file": str(self.folder / f"e2e-{name}.safetensors"), **body})
        models = self.webui.api("/controlnet/model_list?update=true")["model_list"]
        return next(model for model in models if model.startswith(f"e2e-{name}"))

    def unit(self, name: str = "random", **changes: Any) -> dict[str, Any]:
        """One unit; ``seed`` and ``adapter`` say which network, the other changes are the unit's own."""
        body = {key: changes.pop(key) for key in ("seed", "adapter") if key in changes}
        image = {"image": hint(body.get("seed", 0)), "processor_res": 128}
        model = "None" if changes.get("module") == "reference_only" else self.model(name, **body)
        return {"enabled": True, "module": "none", "model": model, "weight": 1.0, **image, **changes}

    def fields(self, *units: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The fields of a generation with these units."""
        scripts = always_on(self.webui, "ControlNet", *units)
        return {"checkpoint": self.checkpoint, "steps": 4, "alwayson_scripts": scripts, **more}


def hint(seed: int = 0) -> str:
    """A prepared hint of a ControlNet."""
    picture = np.zeros((128, 128, 3), np.uint8)
    picture[30:90, 40:100], picture[:: 8 + 3 * seed] = 255, 120
    return to_png(picture)


def beside_weights(webui: WebUI, by_blocks: str, whole: str = ALL) -> str:
    """What runs where with ``lora_functional``; Regional Prompter, where it is there, switches that off at every generation."""
    need_a1111(webui, "LoRAs beside the weights: its setting for them does nothing")
    names = {script["name"] for script in webui.api("/sdapi/v1/script-info")}
    return whole if "regional prompter" in names else by_blocks


def use(webui: WebUI, checkpoint: str, settings: dict[str, Any] | None = None) -> None:
    """Load a checkpoint, and leave it loaded; without previews, whose network would be downloaded for SD3."""
    given = {"live_previews_enable": False, **(settings or {})}
    webui.generate(checkpoint=checkpoint, steps=1, override_settings_restore_afterwards=False, override_settings=given)
    webui.set_options(live_previews_enable=webui.settings["live_previews_enable"])


def write_lora(webui: WebUI, folder: Path, kind: str = "lora", seed: int = 5) -> str:
    """Write a LoRA of random weights for the checkpoint in use, and return its name in prompts."""
    need_probe(webui)
    file = folder / f"e2e-{kind.replace(' ', '-')}-{seed}-{folder.name}.safetensors"
    webui.api("/probe/lora", {"file": str(file), "kind": kind, "seed": seed})
    return file.stem


def write_upscaler(file: Path, blocks: int, features: int) -> None:
    """Write an ESRGAN of random weights that enlarges four times; the true R-ESRGAN 4x+ has 23 blocks and 64 features."""
    convolutions = {"conv_first": (3, features), "conv_last": (features, 3)}
    convolutions |= dict.fromkeys(("conv_body", "conv_up1", "conv_up2", "conv_hr"), (features, features))
    for block, dense, number in itertools.product(range(blocks), (1, 2, 3), range(1, 6)):
        sizes = features + 32 * (number - 1), features if number == 5 else 32
        convolutions[f"body.{block}.rdb{dense}.conv{number}"] = sizes
    generator, state = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
    for name, (inputs, outputs) in convolutions.items():
        weight = torch.randn(outputs, inputs, 3, 3, generator=generator) * (2 / 1.04 / inputs / 9) ** 0.5
        state[f"{name}.weight"], state[f"{name}.bias"] = weight, torch.zeros(outputs)
    state["conv_last.weight"] *= 0.02
    state["conv_last.bias"] += 0.5
    save_pickled(file, {"params_ema": state})


def with_lora(name: str, strength: float = 1.0, tag: str = "lora") -> str:
    """The suite's prompt with a LoRA."""
    return f"{PROMPT} <{tag}:{name}:{strength}>"
