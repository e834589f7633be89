"""``python -m ov_backend precompile``: a checkpoint's graphs are put on disk before a picture is wanted of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.cli.arguments import size
from ov_backend.errors import OVBackendError
from ov_backend.pipelines.sizes import MAX_BATCH
from ov_backend.settings import BLOB_CACHES, PRECISIONS, Settings

if TYPE_CHECKING:
    from ov_backend.pipelines.accelerate import Accelerated
    from ov_backend.pipelines.precompile import Size

_COUNTS = ("captures", "graph_hits", "compiles", "blob_hits")


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Capture, convert and compile a checkpoint's networks for sizes before they are needed; their graphs stay on disk."
    parser = commands.add_parser("precompile", help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a Stable Diffusion 1, 2 or XL .safetensors file")
    parser.add_argument("--sizes", type=sizes, metavar="WxH,...", help="pixels, default: what the checkpoint was made for")
    parser.add_argument("--batch", type=batches, default=[1], metavar="N,...", help="pictures at once, default 1")
    parser.add_argument("--guidance", type=float, default=7.0, help="guidance scale, default 7; 1 is none and another graph")
    parser.add_argument("--device", help="an OpenVINO device, default CPU; see the command devices")
    parser.add_argument("--precision", default="auto", help=f"one of {', '.join(PRECISIONS)}")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="where captured graphs are kept")
    words = "keep what the device made of the weights too: auto (where compiling is slow), on or off"
    parser.add_argument("--blob-cache", default="auto", choices=BLOB_CACHES, help=words)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: argparse.Namespace) -> int:
    """Make everything ready; the exit code is 0, or 1 where a network stays in PyTorch."""
    device = {"device": options.device} if options.device is not None else {}
    settings = Settings(precision=options.precision, cache_dir=options.cache_dir, blob_cache=options.blob_cache, **device)
    from ov_backend import devices

    devices.check(settings)  # before a checkpoint of gigabytes is read
    try:
        from ov_backend.checkpoint import load_pipeline
        from ov_backend.pipelines import accelerate
        from ov_backend.pipelines.sizes import own_size
    except ImportError as error:
        raise OVBackendError(f"Reading a checkpoint needs more packages ({error}): pip install 'ov-backend[demo]'") from error
    pipe = load_pipeline(options.checkpoint)
    pipe.set_progress_bar_config(disable=True)
    wanted = options.sizes or [own_size(pipe)]

    def say(text: str) -> None:
        stream = sys.stderr if options.json else sys.stdout
        stream.write(f"{text}\n")
        stream.flush()

    with accelerate(pipe, settings) as accelerated:
        made = prepare(accelerated, wanted, options.batch, {"guidance_scale": options.guidance}, say)
        store = accelerated.engine.store
        fallbacks = {name: values["fallbacks"] for name, values in accelerated.stats().items() if values["fallbacks"]}
    folder = str(store.folder) if store is not None else None
    if options.json:
        result = {"folder": folder, "ready": [asdict(each) for each in made], "fallbacks": fallbacks}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        say(f"The graphs are in {folder}." if folder else "The graphs are not kept: caching is switched off.")
    return 1 if fallbacks else 0


@dataclass(frozen=True)
class Made:
    """One size that is ready: what was made for it, over all networks."""

    width: int
    height: int
    batch: int
    seconds: float
    captures: int
    graph_hits: int
    compiles: int
    blob_hits: int

    def __str__(self) -> str:
        made = f"{self.captures} captured, {self.graph_hits} found on disk, {self.compiles} compiled"
        more = f", {self.blob_hits} compiled before" if self.blob_hits else ""
        return f"{self.width}x{self.height}, {self.batch} at once: ready after {self.seconds:.1f} s ({made}{more})"


def prepare(
    accelerated: Accelerated,
    wanted: Sequence[tuple[int, int]],
    batch: Sequence[int],
    arguments: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Made]:
    """Make every size and batch ready; ``say`` is told of each, and of a network that stays in PyTorch."""
    made: list[Made] = []
    before = _counts(accelerated)
    start = time.perf_counter()

    def done(size: Size) -> None:
        nonlocal before, start
        now, end = _counts(accelerated), time.perf_counter()
        made.append(Made(*size, end - start, *(now[name] - before[name] for name in _COUNTS)))
        before, start = now, end
        say(str(made[-1]))

    accelerated.precompile(wanted, batch, arguments=arguments, done=done)
    return made


def _counts(accelerated: Accelerated) -> dict[str, int]:
    stats = accelerated.stats().values()
    return {name: sum(values[name] for values in stats) for name in _COUNTS}


def sizes(text: str) -> list[tuple[int, int]]:
    """Read ``512x768,512`` (width first).

    Raises:
        ArgumentTypeError: one of them is no size that can be made; the message says which and what would do.
    """
    return [size(each) for each in text.split(",")]


def batches(text: str) -> list[int]:
    """Read ``1,2,4``.

    Raises:
        ArgumentTypeError: one of them is no number of pictures.
    """
    found = []
    for each in text.split(","):
        if not each.strip().isdecimal() or not 1 <= int(each) <= MAX_BATCH:
            raise argparse.ArgumentTypeError(f"{each!r} is no batch; give whole numbers from 1 to {MAX_BATCH}, as 1,2")
        found.append(int(each))
    return found
