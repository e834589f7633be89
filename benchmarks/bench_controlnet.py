"""SD1.5's UNet with one ControlNet: PyTorch eager f32, OpenVINO by the UNet's blocks, and OpenVINO with the UNet as a whole.

    python -m benchmarks controlnet [--size 512] [--steps 10] [--repeats 3] [--precision auto] [--json] [--tiny]

By its blocks: the UNet's forward is another extension's, which adds the ControlNet's residuals between the blocks, as in the
WebUI with sd-webui-controlnet. As a whole: the residuals are inputs of the UNet's graph, as in diffusers' pipelines. The
ControlNet is diffusers' ControlNetModel, one graph in both. Weights are random, batch 2 (prompt and negative prompt), one unit.

Each way has a process of its own, without a stored graph. The first picture is --steps steps of both networks, without text
encoder and VAE; it includes tracing and compiling. Every result is compared with eager's before a time is printed.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import parser_of, run_child, show, write_line, write_result
from benchmarks.memory import Peak, resident
from benchmarks.networks import TOLERANCE, seconds_of, unet, without_zeros
from ov_backend import Settings
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.engine import Engine, NetworkHooks

WAYS = {"eager": "PyTorch eager f32", "blocks": "OpenVINO by blocks", "whole": "OpenVINO, UNet whole"}

#: ``step(latent, timestep)`` computes both networks once, and returns the UNet's answer.
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class ControlledUNet(torch.nn.Module):
    """ldm's UNet whose forward takes residuals, and adds them where ControlNet's extension does."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet: Any = unet

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, *residuals: torch.Tensor) -> torch.Tensor:
        from ldm.modules.diffusionmodules.util import timestep_embedding

        emb = self.unet.time_embed(timestep_embedding(timesteps, self.unet.model_channels, repeat_only=False))
        h, skipped, rest = x, [], list(residuals)
        for block in self.unet.input_blocks:
            h = block(h, emb, context)
            skipped.append(h)
        h = self.unet.middle_block(h, emb, context) + rest.pop()
        for block in self.unet.output_blocks:
            h = block(torch.cat([h, skipped.pop() + rest.pop()], dim=1), emb, context)
        return self.unet.out(h)  # type: ignore[no-any-return]


class Networks:
    """Both networks and the inputs of a picture.

    Args:
        size: pixels of the square picture.
        is_small: a fifth of the channels, to test the benchmark.
    """

    def __init__(self, size: int, is_small: bool) -> None:
        from diffusers import ControlNetModel

        torch.manual_seed(2)
        case = unet(size, is_small)
        width = 64 if is_small else 320
        config = {"block_out_channels": [width, 2 * width, 4 * width, 4 * width], "cross_attention_dim": 768}
        self.unet = ControlledUNet(case.module).eval()
        self.controlnet = without_zeros(ControlNetModel(**config, attention_head_dim=8))
        self.latent, self.context = case.args[0], case.kwargs["context"]
        self.hint = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(3))

    def controlled_by(self, controlnet: Callable[..., Any], unet: Callable[..., Any]) -> Step:
        """One step by two functions that stand for the networks."""

        def step(latent: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
            down, middle = controlnet(latent, timestep, self.context, self.hint, return_dict=False)
            result: torch.Tensor = unet(latent, timestep, self.context, *down, middle)
            return result

        return step

    def picture(self, step: Step, steps: int) -> torch.Tensor:
        """The latent after some steps of Euler's method."""
        latent = self.latent
        for timestep in torch.linspace(999, 0, steps + 1)[:-1]:
            latent = latent - step(latent, timestep.repeat(2)) / steps
        return latent


def main() -> None:
    """Run every measurement and print the table."""
    options = parse()
    if options.way:
        write_result(measure(options))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = {way: run(way, options, Path(folder)) for way in WAYS}
    show(results, options, report)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "small networks")
    parser.add_argument("--size", type=int, help="pixels of the square picture; 512, or 128 with --tiny")
    parser.add_argument("--steps", type=int, default=10, help="steps of the first picture")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of timed steps")
    parser.add_argument("--precision", default="auto", choices=list(TOLERANCE))
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.size = options.size or (128 if options.tiny else 512)
    return options


def run(way: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The figures of one way, from a process of its own."""
    arguments = ["--way", way, "--folder", folder, "--size", options.size, "--steps", options.steps]
    arguments += ["--repeats", options.repeats, "--precision", options.precision]
    result: dict[str, Any] = run_child("benchmarks.bench_controlnet", options, *arguments)
    return result


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """In a child process: first picture, steps and memory of one way; eager leaves what the others are compared with."""
    logging.basicConfig(level=logging.WARNING)
    networks = Networks(options.size, options.tiny)
    eager = networks.controlled_by(networks.controlnet, networks.unet)
    result: dict[str, Any] = {"weights_mib": resident()}
    if options.way == "eager":
        with Peak() as peak:
            result["picture_s"], latent = timed(lambda: networks.picture(eager, options.steps))
        result.update(peak_mib=peak.peak, after_mib=resident())
        answer = eager(networks.latent, torch.tensor([500.0, 500.0]))
        torch.save((answer, latent), options.folder / "eager.pt")
        return {**result, **steps(networks, eager, None, options.repeats)}
    calls = patch_calls()
    engine, step = prepare(networks, options)
    with Peak() as peak:
        result["picture_s"], latent = timed(lambda: networks.picture(step, options.steps))
    result.update(peak_mib=peak.peak, after_mib=resident())
    compare(options, result, step(networks.latent, torch.tensor([500.0, 500.0])), latent)
    check_what_answered(engine, options.way)
    result["graphs_count"] = sum(stats["captures"] for stats in engine.stats().values())
    result.update(steps(networks, step, eager, options.repeats))
    calls.undo()
    return result


def timed(function: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Seconds of a call, and what it returned."""
    results: list[torch.Tensor] = []
    return seconds_of(lambda: results.append(function())), results[0]


def prepare(networks: Networks, options: argparse.Namespace) -> tuple[Engine, Step]:
    """An engine with an empty store, and a step by its networks."""
    engine = Engine(Settings(precision=options.precision, cache_dir=str(options.folder / options.way)))
    controlnet = add(engine, "controlnet", networks.controlnet)
    unet = add(engine, "unet", networks.unet)
    if options.way == "whole":
        return engine, networks.controlled_by(controlnet, unet)

    def by_blocks(*args: Any) -> Any:
        return unet.by_blocks("another extension put a forward of its own on it", networks.unet.forward, args, {})

    return engine, networks.controlled_by(controlnet, by_blocks)


def add(engine: Engine, name: str, module: torch.nn.Module) -> Blockwise:
    """A network of the engine that can also be answered by its blocks."""
    network = Blockwise(engine.resources, name, module, module.forward, NetworkHooks())
    engine.add(network)
    return network


def compare(options: argparse.Namespace, result: dict[str, Any], answer: torch.Tensor, latent: torch.Tensor) -> None:
    """Note the relative errors of one step and of the picture, and check the step's."""
    expected_answer, expected_latent = torch.load(options.folder / "eager.pt")
    result["relative_error"] = error = relative_error(answer, expected_answer)
    result["picture_error"] = relative_error(latent, expected_latent)
    assert error < TOLERANCE[options.precision], f"relative error {error} of {options.way}"


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference, relative to what was expected."""
    return float((actual - expected).norm() / expected.norm())


def check_what_answered(engine: Engine, way: str) -> None:
    """Check that no call was left to PyTorch, and that the UNet was answered in the way that is measured."""
    stats = engine.stats()
    assert not any(each["fallbacks"] for each in stats.values()), stats
    assert not stats["controlnet"]["by_blocks"], stats
    assert bool(stats["unet"]["by_blocks"]) == (way == "blocks"), stats


def steps(networks: Networks, step: Step, eager: Step | None, repeats: int) -> dict[str, Any]:
    """Seconds of a step; with eager's step timed alternately, and the median ratio of the pairs."""
    timestep = torch.tensor([500.0, 500.0])
    ours, ratios = [], []
    for _ in range(repeats):
        ours.append(seconds_of(lambda: step(networks.latent, timestep)))
        if eager is not None:
            ratios.append(seconds_of(lambda: eager(networks.latent, timestep)) / ours[-1])
    return {"step_s": min(ours), "speed_ratio": statistics.median(ratios) if ratios else 1.0}


def report(results: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    size = f"{options.size}x{options.size}"
    write_line(f"{size}, precision {options.precision}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    heads = ("step, s", "times", f"{options.steps} steps, s", "graphs", "error", "weights", "peak", "after, MiB")
    write_line(f"{'':24s}" + "".join(f"{head:>13s}" for head in heads))
    for way, result in results.items():
        graphs = result.get("graphs_count", "-")
        error = f"{result['relative_error']:.1e}" if "relative_error" in result else "-"
        times = (f"{result['step_s']:.3f}", f"{result['speed_ratio']:.2f}", f"{result['picture_s']:.2f}", graphs)
        memory = (result["weights_mib"], result["peak_mib"], result["after_mib"])
        write_line(f"{WAYS[way]:24s}" + "".join(f"{value!s:>13s}" for value in (*times, error, *memory)))


if __name__ == "__main__":
    main()
