"""The peers that run diffusers' pipeline in PyTorch, in torch.compile, or in ov_backend."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.picture import Picture, Report, draw
from benchmarks.peers.weights import lora_changes

#: The networks of a pipeline; the last one is SDXL's only.
NETWORKS = ("unet", "vae", "text_encoder", "text_encoder_2")


class Eager:
    """PyTorch, float32. Weights are changed in place, as the WebUI does."""

    dtype = torch.float32

    def __init__(self, keep: Path, report: Report) -> None:
        self.keep, self.report = keep, report

    def load(self, checkpoint: Path) -> None:
        """Load the pipeline from files; they say which class it has."""
        from diffusers import DiffusionPipeline

        self.pipe = DiffusionPipeline.from_pretrained(str(checkpoint), torch_dtype=self.dtype, local_files_only=True)
        self.pipe.set_progress_bar_config(disable=True)
        components = self.pipe.components
        self.networks = {name: components[name] for name in NETWORKS if name in components}
        self.prepare()

    def prepare(self) -> None:
        """Prepare the loaded pipeline."""

    def recompile(self) -> bool:
        """Compile again for changed weights; False if the peer has no need of that."""
        return False

    def picture(self, width: int, height: int, steps: int) -> Picture:
        """Draw a picture."""
        return draw(self.pipe, width, height, steps, self.dtype)

    @torch.no_grad()
    def second_checkpoint(self, checkpoint: Path) -> None:
        """Copy the weights of a checkpoint into the networks, tensor by tensor."""
        from safetensors import safe_open

        for folder, network in self.networks.items():
            (path,) = (checkpoint / folder).glob("*.safetensors")
            missing = dict(network.named_parameters())
            with safe_open(str(path), framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (it is no dict)
                    parameter = name if name in missing else name.removeprefix("text_model.")  # depends on transformers' version
                    missing.pop(parameter).copy_(file.get_tensor(name))
            if missing:
                raise ValueError(f"{path} lacks {', '.join(missing)}")

    @torch.no_grad()
    def lora(self, path: Path) -> None:
        """Add the LoRA to the weights, in place."""
        parameters = dict(self.networks["unet"].named_parameters())
        for name, change in lora_changes(path, parameters):
            parameters[name].add_(change.to(self.dtype))


class EagerBf16(Eager):
    """PyTorch, bf16, channels last."""

    dtype = torch.bfloat16

    def prepare(self) -> None:
        """Use the memory format in which bf16 convolutions are fastest."""
        self.pipe.unet.to(memory_format=torch.channels_last)
        self.pipe.vae.to(memory_format=torch.channels_last)


class Inductor(EagerBf16):
    """torch.compile with inductor: bf16, channels last, frozen weights, static shapes."""

    backend: str = "inductor"
    options: dict[str, Any] | None = None

    def prepare(self) -> None:
        """Compile at the first call."""
        super().prepare()
        import torch._inductor.config as config

        config.freezing = True
        self.compile()

    def compile(self) -> None:
        """Compile every network that the pipeline calls."""
        arguments: dict[str, Any] = {"backend": self.backend, "dynamic": False, "options": self.options}
        self.pipe.unet = torch.compile(self.networks["unet"], **arguments)
        self.pipe.text_encoder = torch.compile(self.networks["text_encoder"], **arguments)
        self.networks["vae"].decoder.forward = torch.compile(type(self.networks["vae"].decoder).forward, **arguments).__get__(
            self.networks["vae"].decoder
        )

    def recompile(self) -> bool:
        """Compile everything again; return True."""
        torch._dynamo.reset()
        self.compile()
        return True

    def second_checkpoint(self, checkpoint: Path) -> None:
        """Copy the weights and compile again, because the first weights are frozen in the compiled code."""
        super().second_checkpoint(checkpoint)
        self.recompile()


class OpenVINO(Inductor):
    """torch.compile with OpenVINO's own backend: float32 in PyTorch, bf16 in OpenVINO where the CPU supports it."""

    dtype = torch.float32
    backend = "openvino"
    options = {"device": "CPU", "aot_autograd": True}

    def prepare(self) -> None:
        """Register the backend, count its compiles, and collect the failures that it logs at debug level."""
        import logging

        import openvino as ov
        import openvino.torch  # registers the backend

        report, compile_model, start = self.report, ov.Core.compile_model, time.time()

        def counted(core: Any, *args: Any, **kwargs: Any) -> Any:
            report("openvino_compile", seconds=time.time() - start)
            return compile_model(core, *args, **kwargs)

        ov.Core.compile_model = counted  # type: ignore[method-assign]

        class Reasons(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                report("gave_up", reason=record.getMessage().strip().splitlines()[0][:200])

        log = logging.getLogger("openvino.frontend.pytorch.torchdynamo.backend")
        log.setLevel(logging.DEBUG)
        log.addHandler(Reasons(logging.DEBUG))
        log.propagate = False
        self.compile()


class Ours(Eager):
    """ov_backend.accelerate(pipe)."""

    def prepare(self) -> None:
        """Accelerate the pipeline."""
        import ov_backend

        self.accelerated = ov_backend.accelerate(self.pipe, ov_backend.Settings(cache_dir=str(self.keep), fallback="raise"))

    def counts(self) -> dict[str, int]:
        """The captures, compiles and fallbacks of all networks so far."""
        stats: Iterable[dict[str, Any]] = self.accelerated.stats().values()
        counts = {name: sum(network[name] for network in stats) for name in ("captures", "graph_hits", "compiles", "calls")}
        return {**counts, "fallbacks": sum(sum(network["fallbacks"].values()) for network in stats)}
