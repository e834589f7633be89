"""``python -m ov_backend precompile``: capture and compile a checkpoint's networks before the first picture."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ov_backend.checkpoint.single_file import check_any_checkpoint
from ov_backend.cli import arguments
from ov_backend.core import interrupts
from ov_backend.core.amounts import counted
from ov_backend.core.errors import SettingsError
from ov_backend.core.settings import BLOB_CACHES, ENV_CACHING, Settings
from ov_backend.pipelines.sizes import MAX_BATCH
from ov_backend.store.ownership import folder_problem
from ov_backend.ui.snapshot import STAGES, network_label

if TYPE_CHECKING:
    from ov_backend.pipelines.accelerate import Accelerated
    from ov_backend.pipelines.precompile import Size

_CHECKPOINT_HELP = (
    "one .safetensors file: Stable Diffusion 1, 2 or XL by itself; inpainting, Stable Diffusion 3"
    " or Flux with a folder of the same name beside it (model/ for model.safetensors), which holds model_index.json and the"
    " configuration of each part; folders with weights, and pickles (.ckpt), are not read"
)
_COUNTS = ("captures", "graph_hits", "compiles", "blob_hits")


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Capture, convert and compile a checkpoint's networks for sizes before they are needed; their graphs stay on disk."
    parser = arguments.add_command(commands, "precompile", run, text)
    parser.add_argument("checkpoint", type=arguments.file, metavar="CHECKPOINT", help=_CHECKPOINT_HELP)
    parser.add_argument("--sizes", type=sizes, metavar="WxH,...", help="pixels, default: the checkpoint's own size")
    parser.add_argument("--batch", type=batches, default=[1], metavar="N,...", help="pictures at once, default 1")
    what = "guidance scale, default 7; 1 is no guidance, which needs other graphs"
    parser.add_argument("--guidance", type=arguments.guidance, default=7.0, help=what)
    arguments.add_device_options(parser)
    arguments.add_cache_dir(parser)
    what = "keep compiled networks on disk too: auto (where compiling is slow), on or off"
    parser.add_argument("--blob-cache", default="auto", choices=BLOB_CACHES, help=what)


def run(options: argparse.Namespace) -> int:
    """Prepare every size and batch; the exit code is 0, or 1 where a network stays in PyTorch."""
    settings = arguments.settings_of(options, blob_cache=options.blob_cache)
    _check_store(settings, arguments.cache_dir_name(options))
    check_any_checkpoint(options.checkpoint)
    arguments.check_device(settings)
    from ov_backend.checkpoint import load_any_pipeline

    with interrupts.work():
        return _precompile(options, settings, load_any_pipeline(options.checkpoint))


def _check_store(settings: Settings, name: str) -> None:
    """Check that graphs can be kept, before any is made; ``name`` is what the folder is given by."""
    if not settings.model_caching:
        raise SettingsError(f"{ENV_CACHING} switches the storing of graphs off, so nothing would be kept; unset it.")
    folder = arguments.check_folder(settings.cache_folder, name)
    problem = folder_problem(folder)
    if problem:
        raise SettingsError(f"{folder} cannot hold graphs: {problem}.")


def _precompile(options: argparse.Namespace, settings: Settings, pipe: Any) -> int:
    from ov_backend.pipelines.accelerate import accelerate
    from ov_backend.pipelines.precompile import every
    from ov_backend.pipelines.sizes import own_size
    from ov_backend.store import blobs

    pipe.set_progress_bar_config(disable=True)
    wanted = options.sizes or [own_size(pipe)]
    progress = Progress(len(every(wanted, options.batch)))
    with progress, accelerate(pipe, settings, progress=progress.stage) as accelerated:
        given = {"guidance_scale": options.guidance}
        prepared = prepare(accelerated, wanted, options.batch, given, progress, to_stderr=options.json)
        store = accelerated.engine.store
        fallbacks = {name: values["fallbacks"] for name, values in accelerated.stats().items() if values["fallbacks"]}
    folder = str(store.folder) if store is not None else None
    if store is not None and not fallbacks and not store.entries():
        raise SettingsError(f"No graph could be stored in {folder}; see the warning above and give another --cache-dir.")
    if options.json:
        arguments.print_json({"folder": folder, "ready": [asdict(each) for each in prepared], "fallbacks": fallbacks})
    else:
        later = "" if fallbacks or blobs.enabled(settings) else " The next start compiles from them; it converts nothing."
        print(f"The graphs are in {folder}.{later}" if folder else "The graphs are not kept: caching is switched off.")
    return 1 if fallbacks else 0


@dataclass(frozen=True)
class Prepared:
    """One size and batch that is ready, with the counts over all networks."""

    width: int
    height: int
    batch: int
    seconds: float
    captures: int
    graph_hits: int
    compiles: int
    blob_hits: int

    def __str__(self) -> str:
        counts = f"{self.captures} captured, {self.graph_hits} found on disk, {self.compiles} compiled"
        counts += f", {self.blob_hits} compiled before" if self.blob_hits else ""
        size = f"{self.width}x{self.height}, {counted(self.batch, 'picture')} at once"
        return f"{size}: ready after {self.seconds:.1f} s ({counts})"


def prepare(
    accelerated: Accelerated,
    sizes: Sequence[tuple[int, int]],
    batches: Sequence[int],
    given: Mapping[str, Any],
    progress: Progress,
    *,
    to_stderr: bool,
) -> list[Prepared]:
    """Prepare the networks for every size and batch, and report each that is ready."""
    prepared: list[Prepared] = []
    before = _counts(accelerated)
    start = time.perf_counter()

    def done(size: Size) -> None:
        nonlocal before, start
        now, end = _counts(accelerated), time.perf_counter()
        prepared.append(Prepared(*size, end - start, *(now[name] - before[name] for name in _COUNTS)))
        before, start = now, end
        progress.done(str(prepared[-1]), to_stderr=to_stderr)

    accelerated.precompile(sizes, batches, arguments=given, begin=progress.begin, done=done)
    return prepared


def _counts(accelerated: Accelerated) -> dict[str, int]:
    stats = accelerated.stats().values()
    return {name: sum(values[name] for values in stats) for name in _COUNTS}


def sizes(text: str) -> list[tuple[int, int]]:
    """Read ``512x768,512`` (width first).

    Raises:
        ArgumentTypeError: one of them is no size of a picture; the message says which, and what is expected.
    """
    return [arguments.size(each) for each in text.split(",")]


def batches(text: str) -> list[int]:
    """Read ``1,2,4``. Raises ArgumentTypeError if one of them is no number of pictures."""
    numbers = []
    for each in text.split(","):
        if not each.strip().isdecimal() or not 1 <= int(each) <= MAX_BATCH:
            raise argparse.ArgumentTypeError(f"{each!r} is no batch; give whole numbers from 1 to {MAX_BATCH}, as 1,2")
        numbers.append(int(each))
    return numbers


if TYPE_CHECKING:
    from ov_backend.pipelines.precompile import Size


class Progress:
    """Shows which network of which of so many sizes is being prepared."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit="size", disable=None, leave=False)  # None: disabled where there is no terminal
        self._size = self._shown = ""

    def begin(self, size: Size) -> None:
        """A size begins."""
        width, height, batch = size
        self._size = f"{width}x{height}, {counted(batch, 'picture')} at once"
        self._bar.set_description_str(self._size)

    def stage(self, network: str, stage: str, signature: object) -> None:
        """A network enters a stage; the engine's worker calls this."""
        if stage not in STAGES:
            return
        label = network_label(network)
        self._bar.set_postfix_str(f"{STAGES[stage]} {label}")
        line = f"{self._size}: preparing {label}"
        if self._bar.disable and line != self._shown:
            self._shown = line
            print(line, file=sys.stderr, flush=True)

    def done(self, line: str, *, to_stderr: bool) -> None:
        """A size is ready; ``line`` says so."""
        self._bar.clear()
        print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)
        self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
