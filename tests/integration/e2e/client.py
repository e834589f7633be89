"""A WebUI, used through its API: its checkpoints, LoRAs and samplers, and pictures with the script off and on."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from ov_backend.ui.choices import SWITCHES
from tests.integration.e2e.offline import cache_with_tokenizers

ROOT = Path(__file__).parents[3]
TITLE = "Accelerate with OpenVINO"
PROMPT = "a cat on a red chair"
#: The budget for compiled networks in MiB; 0 is half of the machine's memory, too much where other programs need it.
MEMORY_MB = int(os.environ.get("WEBUI_MEMORY_MB", "0"))

Picture = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pictures:
    """One generation: its pictures as uint8 [H, W, 3], and their parameters as text."""

    images: list[Picture]
    infotexts: list[str]

    @property
    def field(self) -> str:
        """The parameters' OpenVINO field, without quotes, or ""."""
        _, label, rest = self.infotexts[0].rpartition("OpenVINO: ")
        if not label:
            return ""
        return rest[1:].partition('"')[0] if rest.startswith('"') else rest.partition(",")[0]

    @property
    def ran(self) -> str:
        """What ran where, by the field."""
        return self.field.partition(";")[0].removeprefix("ran=")


@dataclass
class WebUI:
    """One running WebUI."""

    url: str
    log: Path | None = None
    #: The WebUI's settings before the tests.
    settings: dict[str, Any] = field(default_factory=dict)
    _saved: set[str] = field(default_factory=set)

    def api(self, path: str, body: Any = None, timeout: float = 900, method: str | None = None) -> Any:
        """Send one request; raises RuntimeError with the WebUI's own text where it fails."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read().decode(errors='replace')[:2000]}") from None

    def has(self, path: str) -> bool:
        """Whether a route exists."""
        try:
            self.api(path)
        except (RuntimeError, urllib.error.URLError):
            return False
        return True

    @cached_property
    def checkpoints(self) -> list[str]:
        """File names of all checkpoints."""
        return sorted(Path(model["filename"]).name for model in self.api("/sdapi/v1/sd-models"))

    def checkpoint(self, *words: str, number: int = 0) -> str | None:
        """The checkpoint with these words in its name; an SD 1.x one is one with none of the other kinds' words."""
        kinds = ("inpaint", "refiner", "xl", "sd2", "v2-", "sd3", "flux", "chroma")
        if words == ("sd1",):
            names = [name for name in self.checkpoints if not any(kind in name.lower() for kind in kinds)]
        else:
            names = [name for name in self.checkpoints if all(word in name.lower() for word in words)]
            names = [name for name in names if "refiner" in words or "refiner" not in name.lower()]
        return names[number] if len(names) > number else None

    def names(self, path: str, key: str = "name") -> list[str]:
        """Names in one of the API's lists; none where this WebUI has no such list."""
        return [item[key] for item in self.api(path)] if self.has(path) else []

    def generate(self, **fields: Any) -> Pictures:
        """The pictures of one request: txt2img, or img2img where there are ``init_images`` (arrays)."""
        body: dict[str, Any] = {
            "prompt": PROMPT,
            "steps": 3,
            "width": 128,
            "height": 128,
            "cfg_scale": 7,
            "seed": 1,
            "sampler_name": "Euler a",
            "scheduler": "Automatic",
            **fields,
        }
        checkpoint = body.pop("checkpoint", None)
        if checkpoint:
            # first: the WebUI applies settings in this order, and loads a VAE into the checkpoint in use
            body["override_settings"] = {"sd_model_checkpoint": checkpoint, **body.get("override_settings", {})}
        if "override_settings" in body:
            body.setdefault("override_settings_restore_afterwards", True)
            self._save(body["override_settings"])
        if body.get("enable_hr"):  # without it Forge's API fails; other WebUIs do not know it
            body.setdefault("hr_additional_modules", ["Use same choices"])
        kind = "img2img" if "init_images" in body else "txt2img"
        for name in ("init_images", "mask"):
            value = body.get(name)
            if isinstance(value, np.ndarray):
                body[name] = to_png(value)
            elif isinstance(value, list):
                body[name] = [to_png(item) for item in value]
        answer = self.api(f"/sdapi/v1/{kind}", body)
        return Pictures([from_png(image) for image in answer["images"]], json.loads(answer["info"])["infotexts"])

    def _save(self, names: Iterable[str]) -> None:
        """Save settings once: the WebUI restores an overridden setting only where it has been saved."""
        new = [name for name in names if name in self.settings and name not in self._saved]
        if new:
            self.set_options(**{name: self.settings[name] for name in new})
            self._saved.update(new)

    def accelerated(self, arguments: list[Any] | None = None, **fields: Any) -> Pictures:
        """The same request with the script."""
        arguments = arguments if arguments is not None else argument_list()
        return self.generate(script_name=TITLE, script_args=arguments, **fields)

    def set_options(self, **options: Any) -> None:
        """Change settings permanently, as "Apply settings" does."""
        self.api("/sdapi/v1/options", options)

    def fallbacks(self) -> Counter[str]:
        """How often PyTorch answered in place of a compiled network, by network and reason."""
        networks = self.api("/openvino/status")["networks"]
        return Counter({f"{name}: {why}": n for name, stats in networks.items() for why, n in stats["fallbacks"].items()})

    def probe(self) -> dict[str, Any]:
        """What the probe extension reports from inside the WebUI."""
        state: dict[str, Any] = self.api("/probe/state")
        return state


def argument_list(precision: str = "f32", **switches: bool) -> list[Any]:
    """The script's arguments."""
    return ["CPU", precision, *(switches.get(name, True) for name in SWITCHES), True, MEMORY_MB, ""]


def to_png(array: Picture, **texts: str) -> str:
    """An array in the API's encoding of pictures, with texts in the PNG."""
    buffer, inside = io.BytesIO(), PngImagePlugin.PngInfo()
    for name, text in texts.items():
        inside.add_text(name, text)
    Image.fromarray(array).save(buffer, "PNG", pnginfo=inside)
    return base64.b64encode(buffer.getvalue()).decode()


def from_png(text: str) -> Picture:
    """An array from the API's encoding of pictures."""
    data = base64.b64decode(text.split(",", 1)[-1])
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def psnr(a: Picture, b: Picture) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal pictures."""
    error = float(((a.astype(np.float64) - b.astype(np.float64)) ** 2).mean())
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


@contextlib.contextmanager
def started(folder: Path, python: str, scratch: Path, *more_flags: str) -> Iterator[WebUI]:
    """Start a WebUI for the suite; this extension, the probe and those in WEBUI_EXTENSIONS are linked into it until it ends."""
    links = {folder / "extensions" / "zz-openvino-e2e": ROOT}
    links[folder / "extensions" / "zz-openvino-probe"] = Path(__file__).parent / "probe"
    present = any((path / "scripts" / "openvino_accelerate.py").exists() for path in (folder / "extensions").iterdir())
    others = os.environ.get("WEBUI_EXTENSIONS")
    links.update({folder / "extensions" / other.name: other for other in sorted(Path(others).iterdir())} if others else {})
    created = []
    for link, target in links.items():
        if not link.exists() and not (target is ROOT and present):
            link.symlink_to(target)
            created.append(link)
    try:
        yield from _serving(folder, python, scratch, *more_flags)
    finally:
        for link in created:
            link.unlink()


def _serving(folder: Path, python: str, scratch: Path, *more_flags: str) -> Iterator[WebUI]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = scratch / "webui.log"
    flags = os.environ.get("WEBUI_FLAGS", "--skip-torch-cuda-test --use-cpu all --no-half --precision full").split()
    command = [
        python,
        "launch.py",
        "--skip-prepare-environment",
        "--api",
        "--no-download-sd-model",
        "--port",
        str(port),
        *flags,
        *more_flags,
    ]
    command += ["--ui-settings-file", str(scratch / "config.json"), "--ui-config-file", str(scratch / "ui-config.json")]
    offline = {"HF_HUB_OFFLINE": "1", **cache_with_tokenizers(scratch / "huggingface")}
    environment = {**os.environ, "SD_WEBUI_RESTARTING": "1", "GRADIO_ANALYTICS_ENABLED": "False", **offline}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait(process, log)
            yield WebUI(f"http://127.0.0.1:{port}", log)
        finally:
            with contextlib.suppress(ProcessLookupError):  # where it has ended by itself, what it said is the error
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, seconds: float = 300) -> None:
    """Wait until the WebUI has started: an earlier request would crash it."""
    end = time.monotonic() + seconds
    while "Startup time" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"The WebUI did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.3)
