"""Upscalers for hires fix, such as ESRGAN: files that the package spandrel reads, run in tiles of one size by OpenVINO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ov_backend.checkpoint.file_kinds import by_names
from ov_backend.checkpoint.header import has_unet, read_shapes
from ov_backend.core.errors import CheckpointError, MissingPackage, OVBackendError, SettingsError, first_line, short_repr
from ov_backend.engine.blocks.blocks import RootNetwork
from ov_backend.engine.blocks.on_demand import BlockwiseOnDemand
from ov_backend.engine.engine import Engine
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.hosts.standalone.upscaler_files import INSTALL, upscaler_files
from ov_backend.ui.infotext import LANCZOS, UPSCALER, Parameters

#: Side of a tile in pixels, as in the WebUI, and by how much tiles overlap. All tiles have one size, so one graph serves them.
_TILE, _OVERLAP = 192, 16
_EXPECTED = "an upscaler that the package spandrel reads, such as ESRGAN, as .safetensors or .pth"


class Upscalers:
    """Those to choose from in a folder, of which one is loaded at a time."""

    def __init__(self, folder: Path | None) -> None:
        self._files = upscaler_files(folder)
        self._loaded: Upscaler | None = None
        self._version: Any = None

    @property
    def names(self) -> list[str]:
        """What can be chosen."""
        return [LANCZOS, *self._files]

    @property
    def modules(self) -> dict[str, Any]:
        """The network that is loaded, by its role; none before the first."""
        return {UPSCALER: self._loaded.module} if self._loaded is not None else {}

    def load(self, parameters: Parameters) -> None:
        """Load the network that a generation's hires fix enlarges with; an ``OVBackendError`` says why it cannot be used."""
        name = parameters.upscaler
        if parameters.hires == 1 or name == LANCZOS:
            return
        if name not in self._files:
            raise SettingsError(f"The upscaler {short_repr(name)} is not here; choose one of {', '.join(self.names)}.")
        path = self._files[name]
        found = path.stat() if path.is_file() else None
        version = path, found and (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._loaded is None or self._version != version:
            self._loaded, self._version = Upscaler(path), version

    def enlarge(self, parameters: Parameters, pictures: list[Any], begins: Callable[[int, int], None]) -> list[Any]:
        """Enlarge pictures by the network that is loaded, see :class:`Upscaler`; they stay as they are for Lanczos."""
        if parameters.upscaler == LANCZOS or self._loaded is None:
            return pictures
        return self._loaded(pictures, parameters.final_size, begins)


class Upscaler:
    """The network of one file."""

    def __init__(self, path: Path) -> None:
        self._reads = _read(path)
        self.module = self._reads.model

    def __call__(self, pictures: list[Any], size: tuple[int, int], begins: Callable[[int, int], None]) -> list[Any]:
        """Enlarge pictures of one size until no side is shorter than in ``size``; ``begins`` is told of each tile."""
        while pictures[0].width < size[0] or pictures[0].height < size[1]:
            pictures = [self._enlarged(each, begins) for each in pictures]
        return pictures

    def _enlarged(self, picture: Any, begins: Callable[[int, int], None]) -> Any:
        """One picture by the network; where tiles overlap, one fades into the other."""
        import numpy as np
        import torch
        from PIL import Image

        pixels = torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255).permute(2, 0, 1)[None]
        scale, (height, width) = self._reads.scale, pixels.shape[-2:]
        total, weights = torch.zeros(3, height * scale, width * scale), torch.zeros(height * scale, width * scale)
        side = min(_TILE, height), min(_TILE, width)
        fade = torch.outer(*(_fade(length * scale, _OVERLAP * scale) for length in side))
        places = [*itertools.product(_places(height), _places(width))]
        for number, (y, x) in enumerate(places, 1):
            begins(number, len(places))
            tile = self._reads(pixels[..., y : y + side[0], x : x + side[1]].contiguous())[0]
            there = slice(y * scale, (y + side[0]) * scale), slice(x * scale, (x + side[1]) * scale)
            total[(slice(None), *there)] += tile * fade
            weights[there] += fade
        if not total.isfinite().all():  # it would be drawn black without a word
            advice = "use another upscaler, or the precision f32 if it was another"
            raise OVBackendError(f"The upscaler's picture is not finite, it holds NaN; {advice}.")
        return Image.fromarray(((total / weights).permute(1, 2, 0) * 255).round().byte().numpy())


class UpscalerNetwork(RootNetwork, BlockwiseOnDemand):
    """An upscaler in OpenVINO, in f32 unless the user has chosen another precision than the device's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lookup.overflowed.all_in_f32 = self._has_no_chosen_precision

    def _has_no_chosen_precision(self) -> bool:
        settings = self.resources.settings
        return settings.precision in ("auto", "int8") and "INFERENCE_PRECISION_HINT" not in settings.config


def upscaler_network(engine: Engine, name: str, module: Any, original: Callable[..., Any]) -> UpscalerNetwork:
    """A new network of the engine, as ``network_of`` makes it for the other roles."""
    return engine.add(UpscalerNetwork(engine.resources, name, module, original, NetworkHooks()))


def _places(length: int) -> list[int]:
    """Where tiles begin along a side of so many pixels."""
    count = max(math.ceil((length - _OVERLAP) / (_TILE - _OVERLAP)), 1)
    return [(length - _TILE) * i // (count - 1) for i in range(count)] if count > 1 else [0]


def _fade(length: int, overlap: int) -> Any:
    """The weights of a tile's pixels along one side, which grow linearly from both ends."""
    import torch

    from_end = torch.arange(1.0, length + 1)
    return torch.minimum(from_end, from_end.flip(0)).clamp(max=overlap) / overlap


def _read(path: Path) -> Any:
    """The network of a file, as spandrel describes it; an ``OVBackendError`` says why there is none."""
    try:
        import spandrel
    except Exception as error:  # of a package that it needs too
        raise MissingPackage(f"spandrel cannot be imported ({first_line(error)}); {INSTALL} installs what it needs.") from error
    weights = _weights(path)
    try:
        found = spandrel.ModelLoader().load_from_state_dict(spandrel.canonicalize_state_dict(weights))
    except Exception as error:  # whatever the class that it takes the weights for makes of them
        raise CheckpointError(f"{path.name} {_kind(weights)}; give {_EXPECTED}.") from error
    channels = found.input_channels, found.output_channels
    if not isinstance(found, spandrel.ImageModelDescriptor) or found.scale < 2 or channels != (3, 3):
        what = f"is a network for {found.purpose} by {found.scale} ({found.architecture.name}), which enlarges no pictures"
        raise CheckpointError(f"{path.name} {what}; give {_EXPECTED}.")
    return found.eval().float()


def _kind(weights: Any) -> str:
    kind = by_names(map(str, weights), False).partition(";")[0]
    return kind if kind not in ("", "is an upscaler") else "is no upscaler that spandrel knows"


def _weights(path: Path) -> Any:
    """The tensors of a file by name; of a pickle nothing else is read, so that no code in it runs."""
    import torch
    from safetensors.torch import load_file

    if path.suffix.lower() == ".safetensors":
        if has_unet(read_shapes(path, _EXPECTED)):
            raise CheckpointError(f"{path.name} is a checkpoint; give {_EXPECTED}.")
        return load_file(path)
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):  # older ones can be made to run code all the same
        raise CheckpointError(f"PyTorch {torch.__version__} does not read {path.name} safely; install 2.6 or give .safetensors.")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip files, pickles and text are refused by many
        raise CheckpointError(f"{path.name} cannot be read ({first_line(error)}); give {_EXPECTED}.") from error
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path.name} holds no weights by name; give {_EXPECTED}.")
    return weights
