"""A WebUI over its API: what it has (checkpoints, LoRAs, samplers) and pictures with the script off and on."""

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

ROOT = Path(__file__).parents[3]
TITLE = "Accelerate with OpenVINO"
PROMPT = "a cat on a red chair"

Picture = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pictures:
    """One generation: its pictures as uint8 [H, W, 3], and their parameters as text."""

    images: list[Picture]
    infotexts: list[str]

    @property
    def field(self) -> str:
        """The parameters' OpenVINO field, without quotes, or ""."""
        _, found, rest = self.infotexts[0].rpartition("OpenVINO: ")
        if not found:
            return ""
        return rest[1:].partition('"')[0] if rest.startswith('"') else rest.partition(",")[0]

    @property
    def ran(self) -> str:
        """What the field says ran where."""
        return self.field.partition(";")[0].removeprefix("ran=")


@dataclass
class WebUI:
    """One running WebUI."""

    url: str
    log: Path | None = None
    #: What its own settings are.
    settings: dict[str, Any] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)

    def api(self, path: str, body: Any = None, timeout: float = 900, method: str | None = None) -> Any:
        """One request; RuntimeError with the WebUI's own words where it fails."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read().decode(errors='replace')[:2000]}") from None

    def has(self, path: str) -> bool:
        """Whether a route is there."""
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
        """A checkpoint whose name says what it is; a plain SD 1.x one is one that says nothing else."""
        kinds = ("inpaint", "refiner", "xl", "sd2", "v2-", "sd3", "flux")
        if words == ("sd1",):
            fitting = [name for name in self.checkpoints if not any(kind in name.lower() for kind in kinds)]
        else:
            fitting = [name for name in self.checkpoints if all(word in name.lower() for word in words)]
            fitting = [name for name in fitting if "refiner" in words or "refiner" not in name.lower()]
        return fitting[number] if len(fitting) > number else None

    def names(self, path: str, key: str = "name") -> list[str]:
        """Names in one of the API's lists."""
        return [item[key] for item in self.api(path)]

    def generate(self, **fields: Any) -> Pictures:
        """Pictures of one request: txt2img, or img2img where there are ``init_images`` (arrays)."""
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
            # first of all: the WebUI sets them in this order, and a VAE goes into the checkpoint loaded then
            body["override_settings"] = {"sd_model_checkpoint": checkpoint, **body.get("override_settings", {})}
        if "override_settings" in body:
            body.setdefault("override_settings_restore_afterwards", True)
            self._write_down(body["override_settings"])
        kind = "img2img" if "init_images" in body else "txt2img"
        for name in ("init_images", "mask"):
            value = body.get(name)
            if isinstance(value, np.ndarray):
                body[name] = to_png(value)
            elif isinstance(value, list):
                body[name] = [to_png(item) for item in value]
        answer = self.api(f"/sdapi/v1/{kind}", body)
        return Pictures([from_png(image) for image in answer["images"]], json.loads(answer["info"])["infotexts"])

    def _write_down(self, names: Iterable[str]) -> None:
        """The WebUI restores an overridden setting only where the setting was written down once."""
        new = [name for name in names if name in self.settings and name not in self._written]
        if new:
            self.set_options(**{name: self.settings[name] for name in new})
            self._written.update(new)

    def accelerated(self, arguments: list[Any] | None = None, **fields: Any) -> Pictures:
        """The same with the script."""
        arguments = arguments if arguments is not None else argument_list()
        return self.generate(script_name=TITLE, script_args=arguments, **fields)

    def set_options(self, **options: Any) -> None:
        """Change settings for good, as "Apply settings" does."""
        self.api("/sdapi/v1/options", options)

    def fallbacks(self) -> Counter[str]:
        """How often PyTorch answered in place of a compiled network, by network and reason."""
        networks = self.api("/openvino/status")["networks"]
        return Counter({f"{name}: {why}": n for name, seen in networks.items() for why, n in seen["fallbacks"].items()})

    def probe(self) -> dict[str, Any]:
        """What the probe extension sees from inside."""
        state: dict[str, Any] = self.api("/probe/state")
        return state


def argument_list(precision: str = "f32", **switches: bool) -> list[Any]:
    """The script's arguments."""
    kinds = [switches.get(name, True) for name in ("unet", "vae", "text_encoder")]
    return ["CPU", precision, *kinds, True, 0, ""]


def to_png(array: Picture, **texts: str) -> str:
    """An array as the API takes pictures, with texts inside."""
    buffer, inside = io.BytesIO(), PngImagePlugin.PngInfo()
    for name, text in texts.items():
        inside.add_text(name, text)
    Image.fromarray(array).save(buffer, "PNG", pnginfo=inside)
    return base64.b64encode(buffer.getvalue()).decode()


def from_png(text: str) -> Picture:
    """A picture of the API as an array."""
    data = base64.b64decode(text.split(",", 1)[-1])
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def psnr(a: Picture, b: Picture) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal pictures."""
    error = float(((a.astype(np.float64) - b.astype(np.float64)) ** 2).mean())
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


@contextlib.contextmanager
def started(folder: Path, python: str, scratch: Path) -> Iterator[WebUI]:
    """A WebUI started for the suite: this extension and the probe are linked into it for that time."""
    links = [folder / "extensions" / "zz-openvino-e2e", folder / "extensions" / "zz-openvino-probe"]
    present = any((path / "scripts" / "openvino_accelerate.py").exists() for path in (folder / "extensions").iterdir())
    made = []
    for link, target in zip(links, (ROOT, ROOT / "tests" / "e2e" / "probe")):
        if not link.exists() and not (target is ROOT and present):
            link.symlink_to(target)
            made.append(link)
    try:
        yield from _serving(folder, python, scratch)
    finally:
        for link in made:
            link.unlink()


def _serving(folder: Path, python: str, scratch: Path) -> Iterator[WebUI]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = scratch / "webui.log"
    flags = os.environ.get("WEBUI_FLAGS", "--skip-torch-cuda-test --use-cpu all --no-half --precision full").split()
    command = [python, "launch.py", "--skip-prepare-environment", "--api", "--no-download-sd-model", "--port", str(port), *flags]
    command += ["--ui-settings-file", str(scratch / "config.json"), "--ui-config-file", str(scratch / "ui-config.json")]
    environment = {**os.environ, "SD_WEBUI_RESTARTING": "1", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
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
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, seconds: float = 300) -> None:
    """Until the WebUI is up: a request before that would be the end of it."""
    end = time.monotonic() + seconds
    while "Startup time" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"The WebUI did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.3)
