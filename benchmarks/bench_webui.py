"""What a change of checkpoint, refiner, LoRA or VAE, and a hires fix, cost in a real WebUI, with the script and without it.

    WEBUI_DIR=... WEBUI_PYTHON=... python -m benchmarks.bench_webui [--tiny] [--size 512] [--steps 4] [--precision auto]
        [--parts checkpoints refiner lora vae hires few sdxl] [--off-once] [--upscaler FILE] [--folder FOLDER] [--out FOLDER]
        [--json]

The parts are rows of pictures, each in a WebUI of its own with an empty store of graphs: first all pictures without the script,
then the same ones with it. The first two pictures of a part are equal: the second one changes nothing, and what another picture
takes beyond it is the price of its change. The checkpoints have random weights in the shapes of SD1.5 and lie on the disk in
float16. The hires fix doubles the sides, by an ESRGAN of R-ESRGAN 4x+'s size, and does as many steps again; the upscaler's
weights are random, too, unless ``--upscaler`` names a file. The part "few" is the sampler LCM without guidance and with TAESD,
for which the WebUI needs its file in models/VAE-taesd. SDXL and its refiner are the WebUI's own ("xl" and "refiner" in their
names; small ones suffice), and compute in f32, because small untrained ones magnify the rounding. Before a part's seconds
count, each picture is compared with PyTorch's, and a state that returns must give the same picture. A return compiles nothing:
else the benchmark fails. Networks beside the model are left out of that, an upscaler and TAESD: when such a one is compiled is
told by its seconds in PyTorch, so a fast one is compiled late; it is once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of, show, write_line
from benchmarks.webui_files import write_checkpoints, write_vae
from tests.integration.e2e.client import PROMPT, Pictures, WebUI, argument_list, psnr, started
from tests.integration.e2e.extensions import with_lora, write_lora, write_upscaler

PARTS = ("checkpoints", "refiner", "lora", "vae", "hires", "few", "sdxl")
#: What runs in OpenVINO in every picture, and the upscaler of a hires fix.
ALL, UPSCALER = ("UNet", "VAE", "text encoder"), "bench-upscaler"
#: In the device's own precision, and in f32 where that is not exact enough.
MOST_COMPILES_OF_OTHERS = 2
#: The names of a model's networks in the status begin with these.
MODELS_NETWORKS = ("unet", "vae", "text_encoder")
#: Least PSNR in dB with PyTorch's picture; another seed's picture is below 15.
LEAST_PSNR = {"auto": 20.0, "bf16": 20.0, "f32": 40.0}
#: Least PSNR in dB of two pictures of one state, made by the same compiled networks.
SAME_PSNR = 60.0
#: Seconds until a compile in the background is over.
PATIENCE_S = 120.0

Fields = dict[str, Any]


@dataclass(frozen=True)
class Shot:
    """One picture of a part: its name, and what is asked for."""

    name: str
    fields: Fields


@dataclass(frozen=True)
class Files:
    """What was written for the benchmark."""

    folder: Path
    first: Path
    second: Path
    vae: str
    small: bool
    upscaler: Path | None


def main() -> int:
    """Measure and write the figures; 1 if a return compiled something, or a picture was wrong."""
    parser = parser_of(__doc__, "small networks and pictures")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--size", type=int, help="pixels of the square picture; default: 512, or 128 with --tiny")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", choices=[*LEAST_PSNR], default="auto")
    parser.add_argument("--off-once", action="store_true", help="make equal pictures without the script once: shorter")
    parser.add_argument("--upscaler", type=Path, help="the hires fix's, a file of ESRGAN's architecture; default: random weights")
    parser.add_argument("--folder", type=Path, help="of temporary files, 5 GB; default: the system's")
    options, _ = parser.parse_known_args()
    options.size = options.size or (128 if options.tiny else 512)
    if not (os.environ.get("WEBUI_DIR") and os.environ.get("WEBUI_PYTHON")):
        sys.stderr.write("webui: skipped, WEBUI_DIR and WEBUI_PYTHON name none\n")
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(options, Path(folder))
    returns = [row["compiles_count"] for rows in results["parts"].values() for row in rows if row["return"]]
    others = [sum(row["others_count"] for row in rows) for rows in results["parts"].values()]
    if any(returns) or any(each > MOST_COMPILES_OF_OTHERS for each in others) or results["faults"]:
        report(results, options)
        return 1
    show(results, options, report)
    return 0


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rows of every part."""
    first, second = write_checkpoints(folder / "checkpoints", options.tiny)
    vae = write_vae(second, folder / "vae" / "bench-vae.safetensors")
    files = Files(folder, first, second, vae, options.tiny, options.upscaler)
    parts, faults = dict[str, list[dict[str, Any]]](), dict[str, str]()
    for name in options.parts:
        try:
            with webui_for(files, name) as webui:
                shots = shots_of(name, webui, files)
                if shots:
                    parts[name] = measure_part(webui, shots, options, "f32" if name == "sdxl" else options.precision)
                else:
                    sys.stderr.write(f"{name}: skipped, the WebUI has no such checkpoints\n")
        except (AssertionError, RuntimeError) as error:  # the other parts go on
            faults[name] = str(error)
        sys.stderr.write(f"{name}: {parts.get(name) or faults.get(name)}\n")
    return {"parts": parts, "faults": faults}


@contextmanager
def webui_for(files: Files, part: str) -> Iterator[WebUI]:
    """A new WebUI, which has no graphs on the disk and no checksums to compute."""
    scratch = files.folder / f"webui-{part}"
    scratch.mkdir()
    upscaler = scratch / f"{UPSCALER}.pth"
    if files.upscaler is None:
        write_upscaler(upscaler, *((3, 48) if files.small else (23, 64)))
    else:
        upscaler.symlink_to(files.upscaler.absolute())
    folders = {"--ckpt-dir": files.first.parent, "--vae-dir": files.folder / "vae", "--esrgan-models-path": scratch}
    flags = ["--no-hashing", *(word for flag, path in folders.items() for word in (flag, str(path)))]
    os.environ["OPENVINO_TORCH_CACHE_DIR"] = str(scratch / "graphs")
    with started(Path(os.environ["WEBUI_DIR"]), os.environ["WEBUI_PYTHON"], scratch, *flags) as webui:
        yield webui


def shots_of(part: str, webui: WebUI, files: Files) -> list[Shot]:
    """The pictures of one part in their order; none if the WebUI lacks their checkpoints."""
    first, second = ({"checkpoint": path.name} for path in (files.first, files.second))
    if part == "checkpoints":
        return _shots(("first checkpoint", first), ("second checkpoint", second), "1212")
    if part == "refiner":
        return _shots(("first checkpoint", first), ("with a refiner", {**first, **_refined_by(files.second.name)}), "1222")
    if part == "lora":
        webui.generate(**first, steps=1, override_settings_restore_afterwards=False)  # the LoRA is for the checkpoint in use
        lora = write_lora(webui, files.folder)
        return _shots(("without the LoRA", first), ("with the LoRA", {**first, "prompt": with_lora(lora)}), "12121")
    if part == "vae":
        own, other = ({**first, "override_settings": {"sd_vae": name}} for name in ("Automatic", files.vae))
        return _shots(("its own VAE", own), ("another VAE", other), "12121")
    if part == "hires":
        twice = {"enable_hr": True, "hr_scale": 2, "hr_upscaler": UPSCALER, "denoising_strength": 0.5}
        return _shots(("first checkpoint", first), ("with a hires fix", {**first, **twice}), "1222")
    if part == "few":
        taesd = {"override_settings": {"sd_vae_decode_method": "TAESD"}, "sampler_name": "LCM", "cfg_scale": 1}
        return [Shot("LCM with TAESD", {**first, **taesd})] * 4
    base, refiner = webui.checkpoint("xl"), webui.checkpoint("refiner")
    if base is None or refiner is None:
        return []
    return _shots(("SDXL", {"checkpoint": base}), ("with its refiner", {"checkpoint": base, **_refined_by(refiner)}), "1222")


def _shots(first: tuple[str, Fields], second: tuple[str, Fields], order: str) -> list[Shot]:
    """The first state once more than ``order`` says: the part's beginning."""
    states = {"1": Shot(*first), "2": Shot(*second)}
    return [states["1"], *(states[number] for number in order)]


def _refined_by(name: str) -> Fields:
    return {"refiner_checkpoint": name.rpartition(".")[0], "refiner_switch_at": 0.5}


def measure_part(webui: WebUI, shots: list[Shot], options: argparse.Namespace, precision: str) -> list[dict[str, Any]]:
    """The rows of one part: seconds of each picture without the script and with it, and compiles."""
    shared = {"prompt": PROMPT, "width": options.size, "height": options.size, "steps": options.steps}
    shared["override_settings_restore_afterwards"] = False
    last = shots[0] if "enable_hr" in shots[-1].fields else shots[-1]  # a hires fix leaves nothing behind, and takes long
    webui.generate(**{**shared, **last.fields, "steps": 1})  # both ways begin with what the last picture leaves
    off = list[tuple[Pictures, float]]()
    for i, shot in enumerate(shots):
        known = options.off_once and shot in shots[:i]
        off.append(off[shots.index(shot)] if known else _timed(webui.generate, **{**shared, **shot.fields}))
    on, compiles = list[tuple[Pictures, float]](), [Counter[str]()]
    for shot in shots:
        on.append(_timed(webui.accelerated, argument_list(precision), **{**shared, **shot.fields}))
        compiles.append(_compiles(webui))
    alike = [compiles[i]["others"] if compiles[i]["others"] == compiles[i + 1]["others"] else None for i in range(len(shots))]
    beside = () if options.tiny else (UPSCALER,)  # a small one is not worth a compile
    _check(shots, [each for each, _ in off], [each for each, _ in on], LEAST_PSNR[precision], alike, beside)
    return [
        {
            "name": shot.name,
            "return": shot in shots[:i],
            "off_s": off[i][1],
            "on_s": on[i][1],
            "over_s": on[i][1] - off[i][1],
            "change_off_s": off[i][1] - off[1][1],
            "change_on_s": on[i][1] - on[1][1],
            "compiles_count": compiles[i + 1]["model"] - compiles[i]["model"],
            "others_count": compiles[i + 1]["others"] - compiles[i]["others"],
            "likeness_db": psnr(off[i][0].images[0], on[i][0].images[0]),
        }
        for i, shot in enumerate(shots)
    ]


def _timed(make: Callable[..., Pictures], *arguments: Any, **fields: Any) -> tuple[Pictures, float]:
    start = time.perf_counter()
    return make(*arguments, **fields), time.perf_counter() - start


def _compiles(webui: WebUI) -> Counter[str]:
    """How many networks of the model, and how many others, were compiled so far, once nothing is compiled in the background."""
    end = time.monotonic() + PATIENCE_S
    while (status := webui.api("/openvino/status"))["state"] != "idle" and time.monotonic() < end:
        time.sleep(0.2)
    others = sum(not each["network"].startswith(MODELS_NETWORKS) for each in status["compiled"])
    return Counter(model=int(status["engine"]["compiles"]) - others, others=others)


def _check(
    shots: list[Shot], off: list[Pictures], on: list[Pictures], least: float, alike: list[int | None], upscalers: tuple[str, ...]
) -> None:
    """Each picture is PyTorch's of the same state and not of the other one, and equal states give equal pictures.

    Args:
        shots: the pictures' states.
        off: those of PyTorch.
        on: those with the script.
        least: PSNR of the two.
        alike: how many networks beside the model were compiled while a picture was made, None where one was in its middle: only
            pictures of one number are made by the same compiled networks.
        upscalers: what runs in OpenVINO in a hires fix, too.
    """
    for i, shot in enumerate(shots):
        assert not off[i].field
        taesd = "sd_vae_decode_method" in shot.fields.get("override_settings", {})  # in the VAE's place
        expected = (*ALL, *upscalers) if shot.fields.get("enable_hr") else ALL
        missing = [name for name in expected if name not in on[i].ran.split(", ") and not (taesd and name == "VAE")]
        assert not missing, f"{shot.name}: {on[i].field or 'the script did not run'}"
        likeness = psnr(off[i].images[0], on[i].images[0])
        assert likeness >= least, f"{shot.name}, picture {i + 1}: the PSNR with PyTorch's picture is {likeness:.1f} dB"
        for other, pictures in zip(shots, off):
            if other != shot and pictures.images[0].shape == on[i].images[0].shape:
                assert psnr(pictures.images[0], on[i].images[0]) < likeness, f"{shot.name}: the picture is that of '{other.name}'"
        first = next(j for j in range(i + 1) if shots[j] == shot and (alike[j] == alike[i] is not None or j == i))
        same = psnr(on[first].images[0], on[i].images[0])
        assert same >= SAME_PSNR, f"{shot.name}, picture {i + 1}: another picture than at first ({same:.1f} dB)"


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the table."""
    size = "small networks" if options.tiny else "SD1.5's shapes"
    write_line(f"{size}, {options.size}x{options.size}, {options.steps} steps, precision {options.precision}")
    write_line(f"{'':36}{'seconds of a picture':^27}{'of the change':^18}{'compiles':>9}{'PSNR':>7}")
    write_line(f"{'':36}" + "".join(f"{head:>9}" for head in ("off", "on", "over", "off", "on")))
    for part, fault in results["faults"].items():
        write_line(f"{part}: failed, {fault}")
    for part, rows in results["parts"].items():
        write_line(part)
        for i, row in enumerate(rows):
            name = f"  {row['name']}{', again' if i == 1 else ', back' if row['return'] else ''}"
            cells = "".join(f"{row[key]:9.1f}" for key in ("off_s", "on_s", "over_s", "change_off_s", "change_on_s"))
            write_line(f"{name:36}{cells}{row['compiles_count'] + row['others_count']:9}{row['likeness_db']:7.1f}")


if __name__ == "__main__":
    sys.exit(main())
