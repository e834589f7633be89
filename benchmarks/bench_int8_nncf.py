"""int8 against NNCF's post-training quantization of the same network: the demo checkpoint's pictures, and seconds of a step.

    pip install nncf
    python -m benchmarks.bench_int8_nncf [--seeds 8] [--steps 20] [--json]

NNCF gets the bound model, whose transposes of weights are folded first, because it would leave the matrix products alone
otherwise, and the calls of the picture that calibrates ours. The time embedding is left out, as it is here. A second time NNCF
leaves out all layers that are left out here. Pictures are those of ``bench_int8_quality`` by DPM++ 2M; PSNR is against f32. The
steps are timed alternately.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch
from PIL import Image

from benchmarks.bench_int8_quality import EQUAL_DB, JUDGED_SAMPLER, Task, draw
from benchmarks.command import write_line
from benchmarks.networks import seconds_of
from ov_backend import Settings, accelerate
from ov_backend.checkpoint import load_pipeline
from ov_backend.core import devices
from ov_backend.core.package_files import TRAINED
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.model import transformations
from ov_backend.model.runtime.binding import bind
from ov_backend.model.runtime.compiled_graph import CompiledGraph
from ov_backend.model.runtime.program import CompiledProgram
from ov_backend.model.transformations.weighted_layers import weighted_layers
from ov_backend.pipelines.accelerate import Accelerated
from ov_backend.ui.comparison import psnr
from training.fidelity import PROMPTS

Inputs = Sequence[torch.Tensor]
Run = Callable[[Inputs], list[torch.Tensor]]


def main() -> None:
    """Measure and print."""
    if importlib.util.find_spec("nncf") is None:
        write_line("NNCF is not installed: pip install nncf")
        return
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, folder)
    write_line(json.dumps(results, indent=1) if options.json else table(results))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=len(PROMPTS), help="number of pictures")
    parser.add_argument("--steps", type=int, default=20, help="of each picture")
    parser.add_argument("--repeats", type=int, default=30, help="timed calls of the UNet")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """PSNR and seconds of a step of every form of the UNet."""
    pipe = load_pipeline(TRAINED)
    pipe.set_progress_bar_config(disable=True)
    pictures: dict[str, list[np.ndarray]] = {}
    forms: dict[str, Run] = {}
    calls: list[Inputs] = []
    seconds: dict[str, float] = {}

    def make(name: str, program: CompiledProgram | None = None) -> None:
        pictures[name] = [draw(pipe, _task(options, prompt, seed)) for seed, prompt in _prompts(options)]
        if program is not None:
            forms[name] = program._run

    with accelerate(pipe, Settings(cache_dir=folder, fallback="raise", precision="f32")) as accelerated:
        make("f32")
        program = _unet(accelerated)
        run, program._run = program._run, lambda inputs: calls.append([x.clone() for x in inputs]) or run(inputs)
        draw(pipe, _calibrating(options))
        model, embedding, left_out = _bound(accelerated, pipe.unet)
    with accelerate(pipe, Settings(cache_dir=folder, fallback="raise")) as accelerated:
        make("own")
        program = _unet(accelerated)
        own = forms["own"] = program._run
        for name, ignored in (("NNCF", embedding), ("NNCF, our layers", left_out)):
            start = time.perf_counter()
            quantized = _quantized(model.clone(), calls, ignored)
            seconds[name] = time.perf_counter() - start
            program._run = _compiled(quantized, own)
            make(name, program)
        program._run = own
    with accelerate(pipe, Settings(cache_dir=folder, fallback="raise", precision="int8")) as accelerated:
        for steps in (options.steps, 1):
            draw(pipe, dataclasses.replace(_calibrating(options), steps=steps))
        stated = accelerated.stats()["unet"]["int8"]
        assert stated["state"] == "on", stated
        make("int8", _unet(accelerated))
    rounds = [{name: seconds_of(lambda f=form: f(calls[-1])) for name, form in forms.items()} for _ in range(options.repeats)]
    return {
        name: {
            "psnr_db": [round(_psnr(*pair), 2) for pair in zip(pictures[name], pictures["f32"])],
            "step_seconds": min(each[name] for each in rounds),
            "of_own": statistics.median(each[name] / each["own"] for each in rounds),
            "quantize_seconds": seconds.get(name),
        }
        for name in forms
    }


def _psnr(a: np.ndarray, b: np.ndarray) -> float:
    return min(EQUAL_DB, psnr(Image.fromarray(a), Image.fromarray(b)))


def _prompts(options: argparse.Namespace) -> list[tuple[int, str]]:
    return [(seed, PROMPTS[seed % len(PROMPTS)]) for seed in range(options.seeds)]


def _task(options: argparse.Namespace, prompt: str, seed: int) -> Task:
    return Task("", JUDGED_SAMPLER, prompt, seed, options.steps)


def _calibrating(options: argparse.Namespace) -> Task:
    return _task(options, suggestions_for("fluent-sd").prompts[-1], 999)


def _unet(accelerated: Accelerated) -> CompiledProgram:
    """What is compiled of the UNet, used last."""
    compiled = accelerated.engine.compiled
    entries = [entry.value for key in compiled if (entry := compiled.peek(key)) is not None]
    program: CompiledProgram = next(entry.program for entry in reversed(entries) if entry.network == "unet")
    return program


def _bound(accelerated: Accelerated, module: torch.nn.Module) -> tuple[ov.Model, list[str], list[str]]:
    """The UNet's model with its weights, and the operators of the time embedding, and of all layers that are left out here."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    graphs = [program.models[""] for (program, _), _ in accelerated.engine.resources.programs._entries.values()]
    (graph,) = (graph for graph in graphs if {spec.name for spec in graph.slots} <= weights.keys() and len(graph.slots) > 100)
    model = bind(graph, weights)
    transformations.apply(model, "f32")
    left_out = [layer for layer in weighted_layers(model, weights) if layer.left_out]
    embedding = [layer for layer in left_out if layer.left_out.startswith("few rows")]
    return model, *([layer.node.get_friendly_name() for layer in layers] for layers in (embedding, left_out))


def _quantized(model: ov.Model, calls: Sequence[Inputs], ignored: Sequence[str]) -> ov.Model:
    """NNCF's 8-bit form of a model."""
    import nncf
    from openvino._offline_transformations import apply_moc_transformations

    apply_moc_transformations(model, cf=False)  # folds the transposes of weights
    names = {int(port.get_any_name().removeprefix("input_")): port.get_any_name() for port in model.inputs}
    samples = [{name: inputs[i].numpy() for i, name in names.items()} for inputs in calls]
    present = {node.get_friendly_name() for node in model.get_ops()}
    scope = nncf.IgnoredScope(names=[name for name in ignored if name in present])
    return nncf.quantize(model, nncf.Dataset(samples), subset_size=len(samples), ignored_scope=scope)


def _compiled(model: ov.Model, own: Run) -> Run:
    """A model in the device's own precision but for what is in 8 bits, called as ``own`` is."""
    compiled = devices.core().compile_model(model, "CPU", devices.compile_config(Settings()))
    assert isinstance(own, CompiledGraph)
    return dataclasses.replace(own, _request=compiled.create_infer_request(), _lock=threading.Lock())


def table(results: Mapping[str, Any]) -> str:
    """The figures as text."""
    lines = [f"torch {torch.__version__}, OpenVINO {devices.openvino_version()}, own {devices.resolved_precision(Settings())}"]
    lines.append(f"{'':20}{'PSNR, median (worst)':>22}{'step':>12}{'of own':>9}{'to quantize':>14}")
    for name, each in results.items():
        psnrs, taken = each["psnr_db"], each["quantize_seconds"]
        likeness = f"{statistics.median(psnrs):.1f} ({min(psnrs):.1f})"
        figures = f"{1e3 * each['step_seconds']:>9.1f} ms{each['of_own']:>9.2f}"
        lines.append(f"{name:20}{likeness:>22}{figures}{f'{taken:.1f} s' if taken else '':>14}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
