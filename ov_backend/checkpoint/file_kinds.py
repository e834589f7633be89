"""What a file is instead of a checkpoint and what to do with it, by its first bytes or by the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

EXPECTED = "one .safetensors file of a Stable Diffusion 1, 2 or XL checkpoint"
_AGAIN = "download the file itself again"
_FROM_FOLDER = "DiffusionPipeline.from_pretrained reads the folder, and ov_backend.accelerate takes the result"

#: How files that are no safetensors begin, what they are, and what to do.
_BEGINNINGS: tuple[tuple[tuple[bytes, ...], str, str], ...] = (
    ((b"GGUF",), "is a GGUF file, whose weights are quantized for other programs", f"give {EXPECTED}"),
    ((b"<!doctype html", b"<html", b"<head"), "is a web page, as a download without a login leaves it", _AGAIN),
    ((b"<?xml",), "is an XML file, as of an OpenVINO model", f"give {EXPECTED}"),
    ((b"version https://git-lfs",), "is a pointer of Git LFS in place of the file", f"run git lfs pull there, or {_AGAIN}"),
    ((b"\x89png", b"\xff\xd8\xff", b"riff", b"gif8"), "is a picture or a film", f"give {EXPECTED}"),
    ((b"{", b"["), "is a file of JSON, as a download that failed leaves it", _AGAIN),
    ((b"rar!", b"7z\xbc\xaf", b"\x1f\x8b", b"\xfd7zxz"), "is a packed archive", "unpack it and give the .safetensors file in it"),
)
#: Parts of the names in files of other kinds, which are looked for in this order; what these are, and what to do.
_NAMES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        (
            *("lora_unet_", "lora_te", "lora_transformer_", ".lora_down.", ".lora_up.", ".lora.down.", ".lora_A."),
            *(".hada_w1_", ".lokr_w1"),
        ),
        "is a LoRA, an addition to a checkpoint",
        "give the checkpoint that it belongs to, and put this file into a folder lora beside that",
    ),
    (
        ("double_blocks.", "single_transformer_blocks."),
        "is a Flux model, or one like it",
        f"give {EXPECTED}; the command precompile and diffusers read it with its configuration beside it",
    ),
    (
        ("joint_blocks.", "transformer_blocks.0.attn.add"),
        "is a Stable Diffusion 3 model, or one like it",
        f"give {EXPECTED}; the command precompile and diffusers read it with its configuration beside it",
    ),
)
#: As above; these names may also be in a checkpoint, so that they are looked for where there is no UNet.
_NAMES_WITHOUT_UNET: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("control_model.", "controlnet_"), "is a ControlNet, an addition to a checkpoint", "give the checkpoint that it belongs to"),
    (("emb_params", "clip_l", "clip_g"), "is a textual inversion embedding", f"give {EXPECTED}"),
    (
        ("down_blocks.0.", "mid_block."),
        "is one network of a diffusers folder",
        f"give {EXPECTED}; in Python, {_FROM_FOLDER}",
    ),
    (
        ("decoder.conv_in.", "decoder.conv_out.", "decoder.mid."),
        "is a VAE without the other networks",
        f"give {EXPECTED}, which has a VAE of its own",
    ),
    (("text_model.", "encoder.block.0.layer.", "transformer.resblocks."), "is a text encoder alone", f"give {EXPECTED}"),
    (("blocks.0.",), "is a model of another architecture", f"give {EXPECTED}"),
    (("conv_first.", "model.0.weight"), "is an upscaler", f"give {EXPECTED}"),
)


def folder_problem(path: Path, is_checkpoint: Callable[[Path], bool]) -> str:
    """What a folder is, and what to give in its place; files in it are proposed that are checkpoints."""
    if (path / "model_index.json").is_file():
        return f"{path} is a diffusers folder, which the commands do not read; give {EXPECTED}. In Python, {_FROM_FOLDER}."
    file = next(filter(is_checkpoint, sorted(path.glob("*.safetensors"))), None)
    if file is None:
        return f"{path} is a folder without a checkpoint; give {EXPECTED}."
    return f"{path} is a folder; give a file in it, such as {file.name[:100]}."


def by_beginning(start: bytes, expected: str) -> str:
    """What a file is by its first bytes, and what to do; "" where that is not known."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for beginnings, what, advice in _BEGINNINGS:
        if text.startswith(tuple(each.lower() for each in beginnings)):
            return f"{what}; {advice.replace(EXPECTED, expected)}"
    return ""


def by_names(names: Iterable[str], has_unet: bool) -> str:
    """What a file is by the names of its tensors, and what to do; "" where that is not known, as for a checkpoint."""
    known = [*names]
    for marks, what, advice in (*_NAMES, *(() if has_unet else _NAMES_WITHOUT_UNET)):
        if any(mark in name for mark in marks for name in known):
            return f"{what}; {advice}"
    return ""
