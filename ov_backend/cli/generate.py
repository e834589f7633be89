"""``python -m ov_backend generate``: pictures of a prompt, each with its networks in OpenVINO."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.cli import arguments, picture
from ov_backend.core import interrupts
from ov_backend.hosts.standalone.generated import write_pictures
from ov_backend.ui.choices import Choices
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
    picture.add(parser, -1)
    number = arguments.whole_number(1, _MOST, 4)
    parser.add_argument("-n", "--count", type=number, default=1, metavar="N", help="number of pictures, with seeds one apart")
    what = "folder of the pictures, default: out"
    parser.add_argument("--out", type=arguments.folder, default=Path("out"), metavar="FOLDER", help=what)


def run(options: argparse.Namespace) -> int:
    """Generate the pictures; the exit code is 0."""
    settings = arguments.settings_of(options)
    arguments.check_uncalibrated(settings)
    arguments.check_folder(options.out, "--out")
    wanted = picture.read(options, count=options.count)
    arguments.check_device(settings)
    from ov_backend.batch.renderer import PipelineRenderer

    with interrupts.work():
        made = _generate(PipelineRenderer, wanted, options, settings)
    if options.json:
        arguments.print_json({"folder": str(options.out), "pictures": made})
    return 0


def _generate(
    renderers: type[PipelineRenderer], wanted: picture.Picture, options: argparse.Namespace, settings: Settings
) -> list[dict[str, Any]]:
    from tqdm import tqdm

    from ov_backend.batch.row import Row
    from ov_backend.core import devices

    path, parameters = wanted.checkpoint, wanted.parameters
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
                row = Row(i + 1, i + 1, chosen, path, devices.resolved_precision(settings), None, wanted.loras)
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
