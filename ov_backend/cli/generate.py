"""``python -m ov_backend generate``: pictures of a prompt, each with its networks in OpenVINO."""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.cli import arguments
from ov_backend.core import interrupts
from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.hosts.standalone import samplers
from ov_backend.hosts.standalone.generated import write_pictures
from ov_backend.hosts.standalone.limits import check
from ov_backend.hosts.standalone.lora_tags import (
    check_lora,
    first_file,
    is_name,
    lora_files,
    lora_folders,
    lora_strength,
    lora_tag,
    loras_of,
    missing_lora,
    named_twice,
)
from ov_backend.hosts.standalone.request import TRAINED, check_checkpoint, checkpoint_file
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.snapshot import STAGES, network_label

if TYPE_CHECKING:
    from ov_backend.batch.renderer import PipelineRenderer
    from ov_backend.batch.row import Row
    from ov_backend.core.settings import Settings

_MOST = 1000


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Generate pictures of a prompt in OpenVINO; each is a PNG that carries its parameters."
    parser = arguments.add_command(commands, "generate", run, text)
    arguments.add_prompt(parser)
    parser.add_argument("--negative", default="", help="what should not be in the picture")
    what = f"{arguments.CHECKPOINT_HELP}; default: the project's own"
    parser.add_argument("--checkpoint", type=arguments.file, metavar="FILE", help=what)
    parser.add_argument("--random", action="store_true", help="use a small checkpoint of random weights")
    what = "add a LoRA, with a strength other than 1 as style.safetensors:0.8; may be given several times"
    parser.add_argument("--lora", action="append", default=[], metavar="FILE[:STRENGTH]", help=what)
    arguments.add_lora_dir(parser)
    number = arguments.whole_number(1, _MOST, 4)
    parser.add_argument("-n", "--count", type=number, default=1, metavar="N", help="number of pictures, with seeds one apart")
    arguments.add_picture(parser, -1)
    what = "folder of the pictures, default: out"
    parser.add_argument("--out", type=arguments.folder, default=Path("out"), metavar="FOLDER", help=what)
    arguments.add_cache_dir(parser)


def run(options: argparse.Namespace) -> int:
    """Generate the pictures; the exit code is 0."""
    settings = arguments.settings_of(options)
    if settings.precision == "int8":
        offered = ", ".join(arguments.UNCALIBRATED)
        raise SettingsError(f"--precision int8 would compute the first picture in another precision; give one of {offered}.")
    if options.out.exists() and not options.out.is_dir():
        raise SettingsError(f"--out is {str(options.out)!r}, which is no folder; give a folder.")
    arguments.check_folder(options.out, "--out")
    prompt = arguments.one_prompt(options)
    check_checkpoint(options.checkpoint, options.random)
    prompt, loras = _with_loras(prompt, options)
    parameters = _parameters(prompt, options)
    arguments.check_device(settings)
    with arguments.demo_packages("Generating"):
        from ov_backend.batch.renderer import PipelineRenderer
    with interrupts.work():
        made = _generate(PipelineRenderer, parameters, loras, options, settings)
    if options.json:
        arguments.print_json({"folder": str(options.out), "pictures": made})
    return 0


def _with_loras(prompt: str, options: argparse.Namespace) -> tuple[str, tuple[tuple[Path, float], ...]]:
    """The prompt with a tag for each LoRA, and all LoRAs with their strengths."""
    checkpoint = options.checkpoint or TRAINED
    folders = lora_folders(checkpoint, options.lora_dir)
    fitting = None if options.random else checkpoint
    given = [_read_lora(text, folders) for text in options.lora]
    full = " ".join([prompt, *(lora_tag(path.stem, strength) for path, strength in given)])
    loras_of(full)  # refuses one that is named twice
    named = lora_files(prompt, folders, fitting)
    for path, _ in given:
        if any(path.samefile(other) for other, _ in named):
            raise named_twice(path, str(path))
        check_lora(path, fitting)
    return full, (*named, *(each for each in given if each[1]))


def _read_lora(text: str, folders: tuple[Path, ...]) -> tuple[Path, float]:
    """Read FILE[:STRENGTH]; the file may also be a name in the folder of LoRAs."""
    name, colon, strength = text.rpartition(":")
    places = (Path(), *folders)
    path = first_file(text, places) if text.strip() else None
    if path is None and colon and name.strip():
        path, value = first_file(name, places), lora_strength(name, strength)
    else:
        name, value = text, 1.0
    if path is None:
        raise missing_lora(name, places)
    if not is_name(path.stem):
        raise SettingsError(f"--lora is {short_repr(text)}; the name of its file must have none of the characters : < > and ,")
    return path, value


def _parameters(prompt: str, options: argparse.Namespace) -> Parameters:
    """The parameters of the first picture, checked; width and height are 0 for the checkpoint's own."""
    own = suggestions_for((options.checkpoint or TRAINED).stem if not options.random else "")
    parameters = Parameters(
        prompt=prompt,
        negative_prompt=options.negative,
        steps=options.steps or own.steps,
        guidance=options.guidance if options.guidance is not None else own.guidance,
        seed=options.seed,
        sampler=samplers.sampler_named(options.sampler) or options.sampler or " ",
    ).with_seed(random.randrange(1 << 32))
    check(parameters)
    if parameters.seed + options.count > 1 << 63:
        raise SettingsError(f"--seed is {parameters.seed}, too large for {options.count} pictures; make it smaller.")
    width, height = options.size or (0, 0)
    return replace(parameters, width=width, height=height)


def _generate(
    renderers: type[PipelineRenderer],
    parameters: Parameters,
    loras: tuple[tuple[Path, float], ...],
    options: argparse.Namespace,
    settings: Settings,
) -> list[dict[str, Any]]:
    from tqdm import tqdm

    from ov_backend.batch.row import Row
    from ov_backend.checkpoint.config import read_configuration
    from ov_backend.core import devices

    path = checkpoint_file(options.checkpoint, options.random)
    if not parameters.width:
        side = read_configuration(path)[1].trained_side
        parameters = replace(parameters, width=side, height=side)
        check(parameters)
    made = []
    with tqdm(total=options.count * parameters.steps, unit="step", disable=None, leave=False) as bar:

        def stage(network: str, name: str, signature: Any) -> None:
            bar.set_postfix_str("" if name == "ready" else f"{STAGES.get(name, name)} {network_label(network)}")

        def step(pipe: Any, number: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            bar.update()
            return tensors

        renderer = renderers(settings, stage, step)
        try:
            for i in range(options.count):
                chosen = replace(parameters, seed=parameters.seed + i)
                row = Row(i + 1, i + 1, chosen, path, devices.resolved_precision(settings), None, loras)
                made.append(_made(renderer, row, options.out, settings.device))
                bar.clear()
                print(_line(made[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
        finally:
            renderer.close()
    return made


def _made(renderer: PipelineRenderer, row: Row, folder: Path, device: str) -> dict[str, Any]:
    """Make and write one picture; returns what there is to tell of it."""
    start = time.perf_counter()
    rendered = renderer.render(row)
    text = row.parameters.as_text(row.checkpoint.stem, Choices(device=device, precision=row.precision))
    (file,) = write_pictures(folder, rendered.images, [text], row.parameters.seed)
    seconds = round(time.perf_counter() - start, 2)
    prepared = round(rendered.prepared_seconds, 2)
    facts = {"file": str(file), "seed": row.parameters.seed, "precision": row.precision, "answered": rendered.answered}
    return {**facts, "seconds": seconds, "prepared_seconds": prepared}


def _line(made: dict[str, Any]) -> str:
    answered = "" if made["answered"] == "OpenVINO" else f", {made['answered']}"
    prepared = f", of which {made['prepared_seconds']:.1f} s once" if made["prepared_seconds"] > 0.5 else ""
    return f"{made['file']} (seed {made['seed']}, {made['precision']}, {made['seconds']:.1f} s{prepared}{answered})"
