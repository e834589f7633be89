"""The peers that run diffusers' pipeline in PyTorch, or in what compiles it; ours among them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.picture import Picture, Say, draw
from benchmarks.peers.weights import lora_changes


class Eager:
    """PyTorch, float32. Weights are exchanged in place, as the WebUI exchanges them."""

    dtype = torch.float32

    def __init__(self, keep: Path, say: Say) -> None:
        self.keep, self.say = keep, say

    def load(self, checkpoint: Path) -> None:
        """From files to a pipeline that can be called."""
        from diffusers import StableDiffusionPipeline

        self.pipe = StableDiffusionPipeline.from_pretrained(str(checkpoint), torch_dtype=self.dtype, local_files_only=True)
        self.pipe.set_progress_bar_config(disable=True)
        self.networks = {"unet": self.pipe.unet, "vae": self.pipe.vae, "text_encoder": self.pipe.text_encoder}
        self.prepare()

    def prepare(self) -> None:
        """What there is to do once the weights are there."""

    def renew(self) -> bool:
        """What makes changed weights seen, where they are not seen by themselves; false if nothing does."""
        return False

    def picture(self, width: int, height: int, steps: int) -> Picture:
        """Draw one."""
        return draw(self.pipe, width, height, steps, self.dtype)

    @torch.no_grad()
    def second_checkpoint(self, checkpoint: Path) -> None:
        """Its weights into the networks that are there, tensor by tensor."""
        from safetensors import safe_open

        for folder, network in self.networks.items():
            (path,) = (checkpoint / folder).glob("*.safetensors")
            missing = dict(network.named_parameters())
            with safe_open(str(path), framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (it is no dict)
                    known = name if name in missing else name.removeprefix("text_model.")  # as transformers names it, or named it
                    missing.pop(known).copy_(file.get_tensor(name))
            if missing:
                raise ValueError(f"{path} lacks {', '.join(missing)}")

    @torch.no_grad()
    def lora(self, path: Path) -> None:
        """Added to the weights, in place."""
        parameters = dict(self.networks["unet"].named_parameters())
        for name, change in lora_changes(path, parameters):
            parameters[name].add_(change.to(self.dtype))


class EagerBf16(Eager):
    """PyTorch, bf16, channels last."""

    dtype = torch.bfloat16

    def prepare(self) -> None:
        """Convolutions in bf16 are fastest so."""
        self.pipe.unet.to(memory_format=torch.channels_last)
        self.pipe.vae.to(memory_format=torch.channels_last)


class Inductor(EagerBf16):
    """torch.compile with its own backend: bf16, channels last, weights frozen, static shapes."""

    backend: str = "inductor"
    options: dict[str, Any] | None = None

    def prepare(self) -> None:
        """Compile at the first call."""
        super().prepare()
        import torch._inductor.config as config

        config.freezing = True
        self.compile()

    def compile(self) -> None:
        """Everything that the pipeline calls."""
        arguments: dict[str, Any] = {"backend": self.backend, "dynamic": False, "options": self.options}
        self.pipe.unet = torch.compile(self.networks["unet"], **arguments)
        self.pipe.text_encoder = torch.compile(self.networks["text_encoder"], **arguments)
        self.networks["vae"].decoder.forward = torch.compile(type(self.networks["vae"].decoder).forward, **arguments).__get__(
            self.networks["vae"].decoder
        )

    def renew(self) -> bool:
        """Compile everything again."""
        torch._dynamo.reset()
        self.compile()
        return True

    def second_checkpoint(self, checkpoint: Path) -> None:
        """The frozen weights are those of the first: everything has to be compiled again."""
        super().second_checkpoint(checkpoint)
        self.renew()


class OpenVINO(Inductor):
    """torch.compile with OpenVINO's own backend, float32 in PyTorch, bf16 within where the CPU computes in it."""

    dtype = torch.float32
    backend = "openvino"
    options = {"device": "CPU", "aot_autograd": True}

    def prepare(self) -> None:
        """Register the backend, count what it compiles, hear what it says of failures at debug level."""
        import logging

        import openvino as ov
        import openvino.torch  # registers the backend

        say, compile_model, begun = self.say, ov.Core.compile_model, time.time()

        def counted(core: Any, *args: Any, **kwargs: Any) -> Any:
            say("openvino_compile", seconds=time.time() - begun)
            return compile_model(core, *args, **kwargs)

        ov.Core.compile_model = counted  # type: ignore[method-assign]

        class Reasons(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                say("gave_up", reason=record.getMessage().strip().splitlines()[0][:200])

        log = logging.getLogger("openvino.frontend.pytorch.torchdynamo.backend")
        log.setLevel(logging.DEBUG)
        log.addHandler(Reasons(logging.DEBUG))
        log.propagate = False
        self.compile()


class Ours(Eager):
    """ov_backend.accelerate(pipe)."""

    def prepare(self) -> None:
        """Put the networks onto OpenVINO."""
        import ov_backend

        self.accelerated = ov_backend.accelerate(self.pipe, ov_backend.Settings(cache_dir=str(self.keep), fallback="raise"))

    def counts(self) -> dict[str, int]:
        """Captures, compiles and fallbacks so far, of all networks."""
        stats: Iterable[dict[str, Any]] = self.accelerated.stats().values()
        counts = {name: sum(network[name] for network in stats) for name in ("captures", "graph_hits", "compiles", "calls")}
        return {**counts, "fallbacks": sum(sum(network["fallbacks"].values()) for network in stats)}
