"""Loads a Stable Diffusion checkpoint file in the original key layout as a diffusers pipeline, without internet access.

The header is read and checked first, the configuration is inferred from shapes (and from a .yaml beside the file), the networks
are built without weights, and every weight is looked up in the file by its original name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ov_backend.checkpoint import keys
from ov_backend.checkpoint.companion_files import check_vocabulary, companion, read_yaml
from ov_backend.checkpoint.config import Configuration, TextConfig, configuration, read_configuration, unknown_architecture
from ov_backend.checkpoint.header import UNET, VAE, Header, read_header
from ov_backend.core.errors import CheckpointError, first_line
from ov_backend.core.package_files import TOKENIZER

__all__ = ["TOKENIZER", "CheckpointError", "configuration", "load_pipeline", "read_header", "read_yaml"]

log = logging.getLogger(__name__)

_VOCABULARY = 49408


def load_pipeline(path: Path) -> Any:
    """The text-to-image pipeline of a checkpoint file, in float32, in evaluation mode.

    Args:
        path: a .safetensors file of Stable Diffusion 1, 2 or XL; a .yaml beside it is read too.

    Returns:
        A ``StableDiffusionPipeline`` or ``StableDiffusionXLPipeline``; its ``unet.config.sample_size`` is the size, in
        latents, that it was trained for.

    Raises:
        CheckpointError: the file is not such a checkpoint; the message says what it is instead.
    """
    header, config = read_configuration(path)
    with _File(header) as file:
        unet, vae, *texts = [file.fill(part) for part in _parts(header, config)]
    prediction = config.prediction or _probe_prediction(unet)
    scheduler = _scheduler(config, prediction)
    tokenizers = [_tokenizer(header.path, text) for text in config.texts]
    return _pipeline(config.family, unet, vae, texts, tokenizers, scheduler)


def check_weights(path: Path) -> None:
    """Check the shapes of all weights of a checkpoint, and that safetensors can open it; none is read.

    Raises:
        CheckpointError: the file is no such checkpoint, or damaged, or weights are missing or have wrong shapes.
    """
    header, config = read_configuration(path)
    with _File(header):
        for part in _parts(header, config):
            part.check(header)


def read_tokenizer(path: Path) -> Any:
    """The tokenizer of a checkpoint's prompts; no weight is read.

    Raises:
        CheckpointError: the file is no such checkpoint, or its tokenizer cannot be used.
    """
    header, config = read_configuration(path)
    return _tokenizer(header.path, config.texts[0])


def _pipeline(family: str, unet: Any, vae: Any, texts: list[Any], tokenizers: list[Any], scheduler: Any) -> Any:
    import diffusers

    parts = {"unet": unet, "vae": vae, "text_encoder": texts[0], "tokenizer": tokenizers[0], "scheduler": scheduler}
    if family == "sdxl":
        return diffusers.StableDiffusionXLPipeline(
            **parts, text_encoder_2=texts[1], tokenizer_2=tokenizers[1], add_watermarker=False
        )
    return diffusers.StableDiffusionPipeline(
        **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
    )


# ---------------------------------------------------------------- empty networks


@dataclass(frozen=True)
class _Part:
    """One network, whose parameters are on the meta device, and where its weights are in the file.

    ``names`` maps a parameter's name to the name in the file behind the prefix. ``whole``: there are no other weights under the
    prefix.
    """

    network: torch.nn.Module
    prefix: str
    names: keys.Names
    whole: bool = False

    def weights(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Of each parameter its name, its name in the file, and its shape."""
        for name, parameter in self.network.named_parameters():
            yield name, self.prefix + self.names(name), tuple(parameter.shape)

    def check(self, header: Header) -> None:
        """Compare with the names and shapes in the file.

        Raises:
            CheckpointError: a weight is missing, has another shape, or fits nowhere.
        """
        used = set()
        for _, key, shape in self.weights():
            _check_shape(header, key, shape)
            used.add(key.partition("#")[0])
        unused = {key for key in header.shapes if key.startswith(self.prefix)} - used if self.whole else set()
        if unused:
            raise unknown_architecture(header, f"{len(unused)} of its weights fit nowhere, {min(unused)[:100]!r} for one")


def _check_shape(header: Header, key: str, shape: tuple[int, ...]) -> None:
    """Check that the file has a weight, which may be a third of one ("name#2"), with this shape."""
    key, _, third = key.partition("#")
    if key not in header.shapes:
        what = f"{header.path.name} is incomplete or of an unknown architecture"
        raise CheckpointError(f"{what}: {key} {list(shape)} is missing.")
    found = tuple(header.shapes[key])
    if third and found and found[0] % 3 == 0:
        found = (found[0] // 3, *found[1:])
    if key.endswith("text_projection"):
        found = found[::-1]
    if found not in (shape, (*shape, 1, 1)):
        what = f"{header.path.name} has an unknown architecture"
        raise CheckpointError(f"{what}: {key} is {list(found)}, {list(shape)} is expected.")


def _parts(header: Header, config: Configuration) -> list[_Part]:
    """UNet, VAE and text encoders. Raises CheckpointError if diffusers or transformers has no such network."""
    try:
        unet, vae, texts = _empty_networks(config)
    except (ImportError, MemoryError):  # no fault of the file
        raise
    except Exception as error:  # they raise what they like
        raise unknown_architecture(header, f"no network can be built from its shapes: {first_line(error)[:300]}") from error
    return [
        _Part(unet, UNET, keys.unet_names(config.unet), whole=True),
        _Part(vae, VAE, keys.vae_names(len(config.vae["block_out_channels"]))),
        *(_Part(part, text.prefix, _text_names(header, text)) for part, text in zip(texts, config.texts)),
    ]


def _empty_networks(config: Configuration) -> tuple[Any, Any, list[Any]]:
    """UNet, VAE and text encoders without weights."""
    from accelerate import init_empty_weights
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    with init_empty_weights(include_buffers=False):
        kinds = [CLIPTextModelWithProjection if text.projection else CLIPTextModel for text in config.texts]
        texts = [kind(CLIPTextConfig(**text.config)) for kind, text in zip(kinds, config.texts)]
        return UNet2DConditionModel(**config.unet), AutoencoderKL(**config.vae), texts


def _text_names(header: Header, text: TextConfig) -> keys.Names:
    if text.open_clip:
        return keys.open_clip_name
    if any(name.startswith(f"{text.prefix}text_model.") for name in header.shapes):
        return keys.clip_name
    return lambda key: keys.clip_name(key).removeprefix("text_model.")  # files of 2022 lack this prefix


# ---------------------------------------------------------------- weights


class _File:
    """An open checkpoint, from which weights are read in float32."""

    def __init__(self, header: Header) -> None:
        self._header = header

    def __enter__(self) -> _File:
        from safetensors import SafetensorError, safe_open

        try:
            self._open = safe_open(str(self._header.path), "pt", device="cpu")
            self._file = self._open.__enter__()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._header.path.name} is damaged: {error}; download or copy it again.") from error
        return self

    def __exit__(self, *exc: Any) -> None:
        self._open.__exit__(*exc)

    def fill(self, part: _Part) -> torch.nn.Module:
        """Load the weights of a network, which is changed in place."""
        part.check(self._header)
        state = {name: self._weight(key, shape) for name, key, shape in part.weights()}
        part.network.load_state_dict(state, strict=False, assign=True)  # the file lacks constant buffers only
        return part.network.eval().requires_grad_(False)

    def _weight(self, key: str, shape: tuple[int, ...]) -> torch.Tensor:
        key, _, third = key.partition("#")
        try:
            tensor = self._file.get_tensor(key)
        except Exception as error:  # of a type that this torch does not have, for example
            raise CheckpointError(f"{self._header.path.name} holds {key}, which cannot be read: {first_line(error)}.") from error
        if third:
            tensor = tensor.chunk(3)[int(third)]
        if key.endswith("text_projection"):
            tensor = tensor.t()
        return tensor.reshape(shape).to(torch.float32, copy=True).contiguous()


# ---------------------------------------------------------------- scheduler and tokenizer


def _scheduler(config: Configuration, prediction: str) -> Any:
    from diffusers import DDIMScheduler

    return DDIMScheduler(**config.scheduler, prediction_type=prediction, clip_sample=False, set_alpha_to_one=False)


@torch.no_grad()
def _probe_prediction(unet: Any) -> str:
    """Whether a UNet predicts noise or velocity, determined from its prediction for pure noise.

    At the last step the latents are noise only. A prediction of noise then has a correlation with them near 1, and a prediction
    of velocity, which is minus the picture there, near 0.
    """
    noise = torch.randn(1, 4, 32, 32, generator=torch.Generator().manual_seed(0))
    context = torch.zeros(1, 77, unet.config.cross_attention_dim)
    predicted = unet(noise, torch.tensor(999), encoder_hidden_states=context).sample
    similarity = float(torch.nn.functional.cosine_similarity(noise.flatten(), predicted.flatten(), dim=0))
    log.info("The checkpoint's prediction for pure noise correlates with the noise by %.2f.", similarity)
    return "epsilon" if similarity > 0.5 else "v_prediction"


def _tokenizer(path: Path, text: TextConfig) -> Any:
    from transformers import CLIPTokenizer

    folder = _tokenizer_folder(path)
    words = text.config["vocab_size"]
    if words < _VOCABULARY:
        raise CheckpointError(f"{path.name} has a text encoder of {words} words; CLIP's vocabulary of {_VOCABULARY} is known.")
    changes = {"pad_token": "!"} if text.open_clip else {}
    check_vocabulary(folder / "vocab.json")
    try:
        tokenizer = CLIPTokenizer.from_pretrained(str(folder), local_files_only=True, model_max_length=77, **changes)
        numbers = tokenizer.get_vocab().values()
        if len({*numbers}) < len(numbers) or max(numbers) >= words:
            raise ValueError(f"the numbers of its words in vocab.json must differ and be below {words}")
        return tokenizer
    except Exception as error:  # transformers and its tokenizers raise what they like
        raise CheckpointError(f"The tokenizer in {folder} cannot be used: {first_line(error)}; correct or remove it.") from error


def _tokenizer_folder(path: Path) -> Path:
    vocabulary = companion(path, "vocab.json") or TOKENIZER / "vocab.json"
    if not vocabulary.is_file() or not (vocabulary.parent / "merges.txt").is_file():
        raise CheckpointError(
            f"The CLIP tokenizer is missing; put its vocab.json and merges.txt into {path.with_suffix('') / 'tokenizer'}."
        )
    return vocabulary.parent
