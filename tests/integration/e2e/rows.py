"""The rows of the tables in docs/webui.md, measured in a running WebUI: ``python -m tests.integration.e2e.rows [WORDS]``.

WEBUI_DIR and WEBUI_PYTHON name it, as for the tests. Of each row: what ran where, the graphs or blocks that were compiled for the
first picture and for its repetition, the largest difference of a colour value, and the processor seconds of a step with the
script off and on, in turn, the least of several. Processor time, because other programs may run beside it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.integration.e2e.client import PROMPT, Pictures, WebUI, started
from tests.integration.e2e.conftest import _ready
from tests.integration.e2e.extensions import BUILT_IN, hint, use, with_lora
from tests.integration.e2e.helpers import A1111, host_of, options
from tests.integration.e2e.test_flux import fields_of

ROUNDS, SHORT, LONG = int(os.environ.get("WEBUI_ROUNDS", "3")), 1, 5


def server(webui: WebUI) -> psutil.Process:
    """The process that listens at the WebUI's address."""
    port = int(webui.url.rpartition(":")[2])
    return next(p for p in psutil.process_iter() if any(c.laddr.port == port and c.status == "LISTEN" for c in connections(p)))


def connections(process: psutil.Process) -> list[Any]:
    try:
        return list(process.connections("tcp"))
    except psutil.Error:
        return []


def seconds_of_a_step(webui: WebUI, process: psutil.Process, fields: dict[str, Any], script: bool) -> float:
    """Processor seconds of one step: those of a long generation less those of a short one."""

    def of(steps: int) -> float:
        before = process.cpu_times()
        (webui.accelerated if script else webui.generate)(**{**fields, "steps": steps})
        after = process.cpu_times()
        return after.user + after.system - before.user - before.system

    return (of(LONG) - of(SHORT)) / (LONG - SHORT)


def compiles(webui: WebUI) -> int:
    return int((webui.api("/openvino/status")["engine"] or {}).get("compiles", 0))


def largest(off: Pictures, on: Pictures) -> int:
    return max(int(np.abs(a.astype(int) - b.astype(int)).max()) for a, b in zip(off.images, on.images))


def measured(webui: WebUI, fields: dict[str, Any], timed: bool) -> str:
    """One row of the table."""
    off, before = webui.generate(**fields), compiles(webui)
    on, first = webui.accelerated(**fields), compiles(webui)
    again, second = webui.accelerated(**fields), compiles(webui)
    cells = [on.ran, f"{first - before}, {second - first}", f"{max(largest(off, on), largest(off, again))}"]
    cells.append(f"{largest(off, webui.generate(**fields))}")
    if timed:
        process = server(webui)
        times = [[seconds_of_a_step(webui, process, fields, script) for script in (False, True)] for _ in range(ROUNDS)]
        cells.append(", ".join(f"{min(each):.2f}" for each in zip(*times)))
    return " | ".join(cells)


def rows(webui: WebUI) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of rows, and the fields of their generations."""
    host, first = host_of(webui), {"checkpoint": webui.checkpoint("sd1")}
    yield "plain", first
    yield "LoRA of UNet and text encoder", {**first, "prompt": with_lora("e2e-both")}
    yield "the same at another strength", {**first, "prompt": with_lora("e2e-both", 0.5)}
    yield "LoRA out", first
    yield "LoRA in again", {**first, "prompt": with_lora("e2e-both")}
    yield "LoRA of the UNet alone", {**first, "prompt": with_lora("e2e-unet")}
    yield "LoRA of the text encoder alone", {**first, "prompt": with_lora("e2e-text")}
    yield "both at once", {**first, "prompt": f"{PROMPT} <lora:e2e-unet:1> <lora:e2e-text:1>"}
    yield "LoRAs out", first
    other = {"checkpoint": webui.checkpoint("sd1", number=1)}
    yield "another checkpoint", other
    yield "back", first
    yield "the other again", other
    yield "DPM adaptive", {**first, "sampler_name": "DPM adaptive"}
    hires = {"enable_hr": True, "hr_scale": 1.5, "denoising_strength": 0.6}
    for upscaler in ("Latent", "Lanczos"):
        yield f"hires fix, {upscaler}", {**first, **hires, "hr_upscaler": upscaler, "hr_second_pass_steps": 2}
    yield "refiner", {**first, "refiner_checkpoint": str(other["checkpoint"]).rpartition(".")[0], "refiner_switch_at": 0.5}
    yield "tiling", {**first, "tiling": True}
    if host != A1111:  # its ControlNet is an extension
        unit = {"enabled": True, "module": "None", "weight": 1.0, "image": hint(), "processor_res": 128}
        unit["model"] = next(name for name in webui.api("/controlnet/model_list")["model_list"] if name.startswith("e2e-control"))
        yield "ControlNet", {**first, "alwayson_scripts": {"ControlNet": {"args": [unit]}}}
    for name, (title, *arguments) in BUILT_IN.get(str(host), {}).items():
        yield name, {**first, "alwayson_scripts": {title: {"args": arguments}}}
    yield "token merging", {**first, **options(token_merging_ratio=0.5)}
    for name in ("sd2", "xl", "inpaint"):
        yield name, {"checkpoint": webui.checkpoint(name)}
    if host == "Forge":
        yield from rows_of_forge(webui, first)


def rows_of_forge(webui: WebUI, first: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What Forge alone has."""
    for words in ("flux",), ("chroma",), ("flux", "nf4"), *((name, "gguf", bits) for name, bits in _GGUF):
        yield " ".join(words), fields_of(webui, *words)
    own = {"forge_additional_modules": []}  # Forge goes on with those of Flux where nothing else is asked for
    no_preview = options(live_previews_enable=False, **own)
    yield "sd3", {"checkpoint": webui.checkpoint("sd3"), "sampler_name": "Euler", "scheduler": "Simple", **no_preview}
    for name, lora in ("", PROMPT), ("the same with a LoRA: ", with_lora("e2e-both")), ("the same without: ", PROMPT):
        yield f"{name}float8", {**first, "prompt": lora, **options(forge_unet_storage_dtype="float8-e4m3fn", **own)}


_GGUF = (("flux", "q8_0"), ("flux", "q4_0"), ("flux", "q4_k"), ("chroma", "q8_0"))
#: Rows whose steps are those of another row, or have no one duration.
_UNTIMED = ("hires", "refiner", "DPM", "back", "another", "the", "LoRA", "both")


def main(words: list[str]) -> None:
    scratch = Path(tempfile.mkdtemp())
    with started(Path(os.environ["WEBUI_DIR"]), os.environ["WEBUI_PYTHON"], scratch) as webui:
        _ready(webui)
        use(webui, str(webui.checkpoint("sd1")))
        for name, fields in rows(webui):
            if not words or any(word in name for word in words):
                try:
                    row = measured(webui, fields, not name.startswith(_UNTIMED))
                except (RuntimeError, StopIteration) as error:  # the other rows are wanted all the same
                    row = f"{type(error).__name__}: {str(error)[:200]}"
                sys.stdout.write(f"| {name} | {row} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
