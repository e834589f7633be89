"""Files for a WebUI that is timed: checkpoints of random weights in the classes of Stable Diffusion 1, and a VAE."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.batch_lists import SD15
from ov_backend.checkpoint.companion_files import parse_yaml
from ov_backend.checkpoint.header import VAE
from tests.helpers.random_checkpoint import CONTEXT, write_random_checkpoint

_DEMO = Path(__file__).parents[1] / "demo_checkpoint"
#: What differs from the demo checkpoint's configuration: UNet, VAE, and the text encoder's own file.
_SMALL: tuple[dict[str, Any], ...] = (
    {"context_dim": CONTEXT},
    {},
    {"hidden_size": CONTEXT, "intermediate_size": 4 * CONTEXT, "num_hidden_layers": 4, "num_attention_heads": 1},
)
_LARGE: tuple[dict[str, Any], ...] = (
    {"model_channels": 320, "attention_resolutions": [4, 2, 1], "channel_mult": [1, 2, 4, 4], "num_heads": 8, "context_dim": 768},
    {"ch": 128, "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2},
    {**SD15["text"], "projection_dim": 768},
)


def write_checkpoints(folder: Path, tiny: bool) -> tuple[Path, Path]:
    """Write two checkpoints of one architecture with other weights each, float16; at the size of SD1.5 each takes 2 GB.

    Args:
        folder: has a folder with the text encoder's configuration afterwards, too.
        tiny: small networks.
    """
    text = _write_text_configuration(folder / "text", _SMALL[2] if tiny else _LARGE[2])
    paths = folder / "bench-first.safetensors", folder / "bench-second.safetensors"
    for seed, path in enumerate(paths):
        write_random_checkpoint(path, seed, **({} if tiny else SD15))
        configuration = _configuration(*(_SMALL if tiny else _LARGE)[:2], text)
        path.with_suffix(".yaml").write_text(json.dumps(configuration, indent=1), encoding="utf-8")  # JSON is YAML
    return paths


def link_checkpoints(checkpoints: Sequence[Path], networks: str, folder: Path) -> None:
    """Make links to checkpoints of ``batch_lists`` that a WebUI can load without a network: each has a configuration beside it.

    Args:
        checkpoints: their files.
        networks: what they are, "small" or "sd15"; the demo checkpoint's configuration is taken as it is.
        folder: a new folder of the links, and of the text encoder's configuration.
    """
    unet, vae, changes = {"small": _SMALL, "sd15": _LARGE, "demo": ({}, {}, {})}[networks]
    text = _write_text_configuration(folder / "text", changes)
    configuration = _configuration(unet, vae, text, is_random=networks != "demo")
    for checkpoint in checkpoints:
        link = folder / checkpoint.name
        link.symlink_to(checkpoint)
        link.with_suffix(".yaml").write_text(json.dumps(configuration, indent=1), encoding="utf-8")


def _configuration(unet: dict[str, Any], vae: dict[str, Any], text: Path, is_random: bool = True) -> dict[str, Any]:
    """The original classes' configuration of a checkpoint; a random one predicts velocity."""
    configuration: dict[str, Any] = parse_yaml((_DEMO / "fluent-sd.yaml").read_text(encoding="utf-8"))
    model = configuration["model"]["params"]
    model |= {"parameterization": "v", "scale_factor": 1.0} if is_random else {}
    model["unet_config"]["params"] |= unet
    model["first_stage_config"]["params"]["ddconfig"] |= vae
    model["cond_stage_config"]["params"]["version"] = str(text)
    return configuration


def _write_text_configuration(folder: Path, changes: dict[str, Any]) -> Path:
    """The text encoder's configuration and its tokenizer, where the WebUI finds both without a network."""
    shutil.copytree(_DEMO / "fluent-sd" / "tokenizer", folder)
    configuration = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**configuration, **changes}), encoding="utf-8")
    return folder


def write_vae(checkpoint: Path, path: Path) -> str:
    """Write the VAE of a checkpoint as a file of its own; returns its name in the WebUI."""
    path.parent.mkdir(exist_ok=True)
    with safe_open(checkpoint, "pt") as file:
        tensors = {name.removeprefix(VAE): file.get_tensor(name) for name in file.keys() if name.startswith(VAE)}  # noqa: SIM118
    save_file(tensors, path)
    return path.name
