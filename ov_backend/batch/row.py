"""One row of a job: a picture, or several of one batch, with all that its pixels depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ov_backend.hosts.standalone.lora_tags import plain
from ov_backend.hosts.standalone.prompt_weights import has_emphasis
from ov_backend.ui.infotext import Parameters

#: What a compile is needed for: width, height, batch, guidance, whether the VAE's encoder is called, and chunks of the prompt.
Shape = tuple[int, int, int, bool, bool, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One row, checked.

    Attributes:
        number: in the names of its pictures, from 1.
        source: the row of the job file that it comes from, from 1; a grid makes several rows of one.
        parameters: as they go into the picture; the prompt has a tag for each LoRA, and the seed is chosen.
        checkpoint: a .safetensors file.
        precision: what the device computes in: "f32", "bf16" or "f16".
        picture: the picture to start from, or None.
        loras: files and strengths other than 0, in the order of the prompt.
        chunks: of 75 tokens, in which the longer of prompt and negative prompt is encoded.
    """

    number: int
    source: int
    parameters: Parameters
    checkpoint: Path
    precision: str
    picture: Path | None = None
    loras: tuple[tuple[Path, float], ...] = ()
    chunks: int = 1

    @property
    def shape(self) -> Shape:
        """What its networks have to be compiled for."""
        chosen = self.parameters
        return chosen.width, chosen.height, chosen.batch, chosen.guidance > 1, self.picture is not None, self.chunks

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its pictures: number and seed, ``000017-42.png``."""
        return tuple(f"{self.number:06d}-{self.parameters.seed + i}.png" for i in range(self.parameters.batch))

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that it is made from."""
        return (self.checkpoint, *((self.picture,) if self.picture is not None else ()), *(path for path, _ in self.loras))

    @property
    def plain_prompt(self) -> str:
        """The prompt without the tags of LoRAs."""
        return plain(self.parameters.prompt)

    def digest(self, content_of: Callable[[Path], str], device: str) -> str:
        """A digest of everything that the pixels depend on; rows with equal digests have equal pictures.

        Args:
            content_of: a digest of a file's content.
            device: that computes.
        """
        chosen = self.parameters
        values = [
            *(chosen.prompt, chosen.negative_prompt, chosen.steps, chosen.guidance, chosen.seed, chosen.width, chosen.height),
            *(chosen.batch, chosen.strength, chosen.sampler, self.precision, device, content_of(self.checkpoint)),
            content_of(self.picture) if self.picture is not None else "",
            [[content_of(path), strength] for path, strength in self.loras],
            *([self.chunks] if self.chunks > 1 else []),  # pictures of earlier versions, which cut long prompts, are made again
            *(["emphasis"] if any(map(has_emphasis, (self.plain_prompt, chosen.negative_prompt))) else []),  # nor read brackets
        ]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]
