"""The same UNet by every backend that can be had here: a step, a new size, a changed weight, and what is wrong.

    python -m benchmarks.bench_peers [--size 256] [--peers NAME ...] [--repeats 3] [--json] [--tiny]

diffusers' UNet of SD1.5 with random weights, batch 2, float32 in PyTorch. Each peer has a process of its own, is called
with sizes A, B, A, B (B half as wide again), then with weights changed in place as a LoRA changes them. PyTorch eager in
float32 is called in turn with it, so that the speed-up is a ratio within one process and every answer has its reference.
Ours is asserted; of the others the errors are shown, and whether OpenVINO was used at all: its own backend hands over to
inductor where it fails. optimum-intel and openvino-genai, which keep copies of their own of a whole pipeline, are not
compared here.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[torch.Tensor], torch.Tensor]
#: Relative error of an answer that is right, in float32 and with bf16 arithmetic.
EXACT, RIGHT = 1e-3, 6e-2


class Bench:
    """The network, its inputs, and the reference."""

    def __init__(self, tiny: bool, store: str) -> None:
        from diffusers import UNet2DConditionModel

        torch.manual_seed(0)
        changes = {"block_out_channels": (32, 64, 64, 64), "cross_attention_dim": 64} if tiny else {"cross_attention_dim": 768}
        self.store = store
        self.module = UNet2DConditionModel(**changes).eval()
        self.text = torch.randn(2, 77, changes["cross_attention_dim"])
        #: What a peer made of the module for itself; a changed weight is changed there too.
        self.copies: list[torch.nn.Module] = []

    def call(self, latent: torch.Tensor, module: Any = None) -> torch.Tensor:
        """The module's answer, or another's of the same arguments."""
        module = self.module if module is None else module
        time_step = torch.tensor(500)
        dtype = next(self.copies[0].parameters()).dtype if self.copies and module is not self.module else torch.float32
        output = module(latent.to(dtype), time_step, encoder_hidden_states=self.text.to(dtype), return_dict=False)[0]
        return output.float()

    def in_bf16(self) -> torch.nn.Module:
        """A copy in bf16, channels last."""
        self.copies = [copy.deepcopy(self.module).to(torch.bfloat16, memory_format=torch.channels_last)]
        return self.copies[0]

    def change(self) -> None:
        """Other weights in the attention layers, written in place."""
        generator = torch.Generator().manual_seed(7)
        for module in (self.module, *self.copies):
            generator.manual_seed(7)
            for name, parameter in module.named_parameters():
                if ".to_" in name and name.endswith("weight"):
                    rows, columns = (torch.randn(n, 4, generator=generator) for n in parameter.shape)
                    scale = 0.5 * float(parameter.float().std())
                    parameter.add_((rows @ columns.T).to(parameter.dtype), alpha=scale)


def eager(bench: Bench) -> Call:
    return bench.call


def eager_bf16(bench: Bench) -> Call:
    module = bench.in_bf16()
    return lambda latent: bench.call(latent, module)


def inductor(bench: Bench) -> Call:
    import torch._inductor.config as config

    config.freezing = True
    module = torch.compile(bench.in_bf16())
    return lambda latent: bench.call(latent, module)


def openvino(bench: Bench) -> Call:
    import openvino.torch  # noqa: F401  (registers its backend)

    module = torch.compile(bench.module, backend="openvino", options={"device": "CPU"})
    return lambda latent: bench.call(latent, module)


def openvino_aot(bench: Bench) -> Call:
    import openvino.torch  # noqa: F401  (registers its backend)

    module = torch.compile(bench.module, backend="openvino", options={"device": "CPU", "aot_autograd": True})
    return lambda latent: bench.call(latent, module)


def openvino_fx(bench: Bench) -> Call:
    import ov_backend  # noqa: F401  (registers the backend)

    options = {"fallback": "raise", "cache_dir": bench.store}
    module = torch.compile(bench.module, backend="openvino_fx", options=options)
    return lambda latent: bench.call(latent, module)


def accelerate(bench: Bench) -> Call:
    import ov_backend

    settings = ov_backend.Settings(cache_dir=bench.store, fallback="raise")
    accelerated = ov_backend.accelerate({"unet": bench.module}, settings)
    network = accelerated.engine.networks["unet"]
    accelerated._swaps.pop().undo()  # the reference calls the module, and ours is called by itself
    return lambda latent: bench.call(latent, network)


PEERS: dict[str, tuple[Callable[[Bench], Call], str]] = {
    "eager": (eager, "PyTorch eager, float32"),
    "eager_bf16": (eager_bf16, "PyTorch eager, bf16, channels last"),
    "inductor": (inductor, "torch.compile: inductor, bf16, frozen"),
    "openvino": (openvino, "torch.compile: OpenVINO's own"),
    "openvino_aot": (openvino_aot, "torch.compile: OpenVINO's own, aot_autograd"),
    "openvino_fx": (openvino_fx, "torch.compile: openvino_fx (ours)"),
    "accelerate": (accelerate, "ov_backend.accelerate (ours)"),
}
OURS = ("openvino_fx", "accelerate")


class Counts(logging.Handler):
    """Graphs that Dynamo handed over, compiles by OpenVINO, and how often its own backend gave up."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.compiles, self.reasons = 0, []
        import openvino as ov

        compile_model = ov.Core.compile_model

        def counted(core: Any, *args: Any, **kwargs: Any) -> Any:
            self.compiles += 1
            return compile_model(core, *args, **kwargs)

        ov.Core.compile_model = counted  # type: ignore[method-assign]

    def attach(self) -> None:
        """Listen to OpenVINO's own backend, once it is imported."""
        logger = logging.getLogger("openvino.frontend.pytorch.torchdynamo.backend")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """It says at debug level why it handed over to inductor."""
        self.reasons.append(record.getMessage().strip().splitlines()[0][:160])

    def now(self) -> dict[str, int]:
        """So far."""
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return {"graphs": graphs, "compiles": self.compiles, "gave_up": len(self.reasons)}


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """In a child: one peer's figures."""
    bench, counts = Bench(options.tiny, options.store), Counts()
    peer = PEERS[options.child][0](bench)
    counts.attach()
    side = options.size // 8
    latents = {"A": torch.randn(2, 4, side, side), "B": torch.randn(2, 4, side, side * 3 // 2)}
    expected = {name: bench.call(latent) for name, latent in latents.items()}
    calls = []

    def call(label: str, size: str) -> torch.Tensor:
        before, start = counts.now(), time.perf_counter()
        output = peer(latents[size])
        seconds = time.perf_counter() - start
        made = {name: value - before[name] for name, value in counts.now().items()}
        error = float((output - expected[size]).norm() / expected[size].norm())
        calls.append({"call": label, "seconds": seconds, "error": error, **made})
        return output

    for label in ("A", "B", "A again", "B again"):
        call(label, label[0])
    pairs = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        peer(latents["A"])
        middle = time.perf_counter()
        bench.call(latents["A"])
        pairs.append((middle - start, time.perf_counter() - middle))
    before_change = expected["A"]
    bench.change()
    expected["A"] = bench.call(latents["A"])
    moved = float((expected["A"] - before_change).norm() / before_change.norm())
    assert moved > 2 * RIGHT, f"the weights change the answer too little ({moved}) to prove anything"
    call("A, other weights", "A")
    if options.child in OURS:
        assert all(made["error"] < RIGHT for made in calls), calls
        assert counts.compiles > 0
        assert [made["compiles"] for made in calls[2:4]] == [0, 0], calls
    if options.child == "eager":
        assert all(made["error"] < EXACT for made in calls), calls
    return {
        "step": min(pair[0] for pair in pairs),
        "speed_up": statistics.median(eager / ours for ours, eager in pairs),
        "calls": calls,
        "stale": calls[-1]["error"] > RIGHT >= calls[0]["error"],
        "in_openvino": counts.compiles > 0,
        "gave_up": sorted(set(counts.reasons)),
    }


def main() -> None:
    """Run every peer and print."""
    options = parse()
    if options.child:
        sys.stdout.write(json.dumps(measure(options)) + "\n")
        return
    results = {name: in_child(name, options) for name in options.peers}
    if options.json:
        sys.stdout.write(json.dumps(results, indent=1) + "\n")
    else:
        sys.stdout.write(table(results, options))
    failed = [name for name in OURS if "failed" in results.get(name, {})]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="pixels of the square picture, default 256")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--repeats", type=int, default=3, help="pairs of timed calls")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds after which a peer is given up")
    parser.add_argument("--tiny", action="store_true", help="a small network, to try the benchmark itself")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One peer's figures from a process of its own, or what became of it."""
    if name == "inductor" and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        return {"failed": "no C++ compiler"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bench_peers", "--child", name, "--store", folder]
        command += ["--size", str(options.size), "--repeats", str(options.repeats), *(["--tiny"] if options.tiny else [])]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}  # everybody starts with nothing
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {options.limit:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(results: dict[str, Any], options: argparse.Namespace) -> str:
    """The figures as text."""
    conditions = f"{options.size}x{options.size}, torch {torch.__version__}, {os.cpu_count()} cores"
    conditions += f", load {os.getloadavg()[0]:.1f}"
    lines = [conditions, "", f"{'':46}{'s/step':>8}{'x eager':>9}{'A':>8}{'B':>8}{'A':>8}{'B':>8}{'LoRA':>8}  graphs  error"]
    for name, found in results.items():
        label = PEERS[name][1]
        if "failed" in found:
            lines.append(f"{label:46}{found['failed']}")
            continue
        calls = found["calls"]
        seconds = "".join(f"{call['seconds']:8.2f}" for call in calls)
        graphs = sum(call["graphs"] for call in calls)
        notes = " STALE after the change of weights" if found["stale"] else ""
        notes += f"; OpenVINO not used: {found['gave_up'][0]}" if found["gave_up"] and not found["in_openvino"] else ""
        error = max(call["error"] for call in calls[:4])
        lines.append(f"{label:46}{found['step']:8.3f}{found['speed_up']:9.2f}{seconds}{graphs:8}  {error:.1e}{notes}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
