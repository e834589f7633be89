"""A picture's generation parameters as text inside its PNG, as the WebUI writes and reads them."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ov_backend.ui.choices import INFOTEXT_FIELD, SWITCHES, Choices, switch_of
from ov_backend.ui.snapshot import network_label

#: A field of the last line, or what else stands before the next comma: it matches everywhere, so that nothing is read twice.
_FIELD = re.compile(r'\s*(\w[\w \-/]*):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)|[^,]*(?:,|$)')
_NEGATIVE = "Negative prompt:"
#: The upscaler that is no network.
LANCZOS = "Lanczos"
#: The name of any other's network; the choice that switches it is the UNet's.
UPSCALER = "upscaler"
#: Radius in pixels by which the edge of a mask is blurred.
MASK_BLUR = 4
_INT8 = {"calibrating": " calibrating int8", "on": " in int8"}


@dataclass(frozen=True)
class Parameters:
    """The parameters of one generation.

    Sizes are in pixels, and ``sampler`` "" is the checkpoint's own. ``hires`` above 1 is hires fix: the picture is enlarged by it
    with ``upscaler``, and made anew from there. ``strength`` is set only with hires fix, and where it starts from a picture.
    """

    prompt: str = ""
    negative_prompt: str = ""
    steps: int = 20
    guidance: float = 7.0
    seed: int = -1
    width: int = 512
    height: int = 512
    batch: int = 1
    strength: float | None = None
    sampler: str = ""
    hires: float = 1.0
    upscaler: str = LANCZOS

    @property
    def final_size(self) -> tuple[int, int]:
        """Width and height of the picture after hires fix, a multiple of 8."""
        return round(self.width * self.hires / 8) * 8, round(self.height * self.hires / 8) * 8

    def with_seed(self, seed: int) -> Parameters:
        """The same parameters, with ``seed`` where none was chosen, which is -1."""
        return self if self.seed != -1 else dataclasses.replace(self, seed=seed)

    def of_picture(self, index: int) -> Parameters:
        """The parameters that make one picture of the batch by itself: as in the WebUI, each has a seed of its own."""
        return dataclasses.replace(self, seed=self.seed + index, batch=1)

    def as_text(self, model: str, choices: Choices, ran: str = "", interrupted: int | None = None, masked: bool = False) -> str:
        """The text that goes into the PNG.

        Args:
            model: the checkpoint's name.
            choices: what was to run where.
            ran: what ran where, as :func:`ran_where` says it.
            interrupted: the last step that was done, where the user has interrupted the generation.
            masked: whether only a part of a picture was made anew.
        """
        fields: dict[str, Any] = {
            "Steps": self.steps,
            "Sampler": self.sampler or None,
            "CFG scale": int(self.guidance) if float(self.guidance).is_integer() else self.guidance,
            "Seed": self.seed,
            "Size": f"{self.width}x{self.height}",
            "Batch size": self.batch if self.batch > 1 else None,
            "Denoising strength": self.strength,
            "Hires upscale": self.hires if self.hires != 1 else None,
            "Hires upscaler": self.upscaler if self.hires != 1 else None,
            "Mask blur": MASK_BLUR if masked else None,
            "Interrupted after step": interrupted,
            "Model": model,
            INFOTEXT_FIELD: choices_field(choices, ran),
        }
        last_line = ", ".join(f"{name}: {_quoted(value)}" for name, value in fields.items() if value is not None)
        negative = f"{_NEGATIVE} {self.negative_prompt}" if self.negative_prompt else ""
        return "\n".join(part for part in (self.prompt, negative, last_line) if part)

    @classmethod
    def from_text(cls, text: str, default: Parameters | None = None) -> tuple[Parameters, Choices | None]:
        """Read a picture's text; parameters that are missing, or no numbers, are those of ``default``, but for the prompts.

        Returns:
            the parameters, and the choices (None where the text has no field of them).
        """
        *lines, last_line = text.strip().split("\n") or [""]
        fields = _fields(last_line)
        if len(fields) < 3:
            lines, fields = [*lines, last_line], {}
        negative_at = next((i for i, line in enumerate(lines) if line.startswith(_NEGATIVE)), len(lines))
        negative = "\n".join(lines[negative_at:]).removeprefix(_NEGATIVE).strip()
        width, _, height = fields.get("Size", "").partition("x")
        default = default or cls()
        parameters = cls(
            "\n".join(lines[:negative_at]).strip(),
            negative,
            _number(int, fields.get("Steps"), default.steps),
            _number(float, fields.get("CFG scale"), default.guidance),
            _number(int, fields.get("Seed"), default.seed),
            _number(int, width, default.width),
            _number(int, height, default.height),
            _number(int, fields.get("Batch size"), default.batch),
            _number(float, fields.get("Denoising strength"), default.strength),
            fields.get("Sampler", default.sampler),
            _number(float, fields.get("Hires upscale"), default.hires),
            fields.get("Hires upscaler", default.upscaler),
        )
        return parameters, Choices.from_infotext(fields[INFOTEXT_FIELD]) if INFOTEXT_FIELD in fields else None


def png(picture: Any, text: str = "") -> bytes:
    """A picture of Pillow's as the bytes of a PNG, with this text as its generation parameters."""
    from PIL import PngImagePlugin

    info, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    if text:
        info.add_text("parameters", text)
    picture.save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def choices_field(choices: Choices, ran: str) -> str:
    """The field of the choices: what ran where, if anybody says so, and then the choices, which the panel reads back."""
    text = choices.as_infotext()
    return "; ".join([f"ran={ran}"] * bool(ran) + [text] * (text != "on" or not ran))


def how_it_ran(switch: str, openvino: bool, pytorch: bool, blocks: bool, int8: str = "") -> str:
    """Where the networks of one switch ran, for a picture's parameters: "UNet", "UNet in int8", "VAE in PyTorch".

    Args:
        switch: of :data:`SWITCHES`.
        openvino: whether OpenVINO has answered a call.
        pytorch: whether PyTorch had to.
        blocks: whether a network was answered by its blocks.
        int8: the state of precision int8, see :class:`ov_backend.engine.stats.NetworkStats`.
    """
    label = network_label(switch)
    if pytorch:
        return f"{label} partly" if openvino else f"{label} in PyTorch"
    return label + " by its blocks" * blocks + _INT8.get(int8, "")


def ran_where(networks: Mapping[str, Mapping[str, Any]], choices: Choices) -> str:
    """Where the networks that were switched on ran in the last generation; ``networks`` are those of a status snapshot."""
    parts = []
    for kind in (*SWITCHES, UPSCALER):
        switch = switch_of(kind)
        own = [network for name, network in networks.items() if (name if name == UPSCALER else switch_of(name)) == kind]
        if own and getattr(choices, switch):
            openvino, pytorch, blocks = (
                any(network[f"run_{key}"] for network in own) for key in ("calls", "fallbacks", "by_blocks")
            )
            states = [network["int8"].get("state", "") for network in own if network.get("int8")]
            if openvino or pytorch:  # after an interruption some were not called, or not as networks
                parts.append(how_it_ran(kind, openvino, pytorch, blocks, (*states, "")[0]))
    return ", ".join(parts)


def refused_choices(text: str) -> list[str]:
    """A message for each of the choices in a picture's text that makes no sense and is therefore the default."""
    fields = _fields(text.strip().split("\n")[-1])
    return Choices.read_infotext(fields.get(INFOTEXT_FIELD, ""))[1]


def _fields(line: str) -> dict[str, str]:
    return {name: _unquoted(value) for name, value in _FIELD.findall(line) if name}


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if re.search(r"[,:\n]", text) else text


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _number(number_type: Callable[[str], Any], text: str | None, default: Any) -> Any:
    try:
        return number_type(text or "")
    except (ValueError, OverflowError):
        return default
