"""The peers that export a pipeline with a copy of its weights: optimum-intel and openvino-genai."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.exported import Exported
from benchmarks.peers.picture import GUIDANCE, PROMPT, Picture
from benchmarks.peers.weights import latents_for


class Optimum(Exported):
    """optimum-intel's OVStableDiffusionPipeline, exported with float16 weights, and reshaped to each size."""

    def _write(self, checkpoint: Path, exported: Path) -> None:
        from optimum.exporters.openvino import main_export
        from optimum.intel import OVConfig

        main_export(
            str(checkpoint),
            output=exported,
            task="text-to-image",
            library_name="diffusers",
            ov_config=OVConfig(dtype="fp16"),  # as --weight-format fp16 on its command line
            local_files_only=True,
        )
        self._tokenizer(checkpoint, exported)

    @staticmethod
    def _tokenizer(checkpoint: Path, exported: Path) -> None:
        """Export the tokenizer as a model, for openvino-genai."""
        import openvino as ov
        from openvino_tokenizers import convert_tokenizer
        from transformers import AutoTokenizer

        target = exported / "tokenizer" / "openvino_tokenizer.xml"
        if not target.is_file():
            tokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(str(checkpoint / "tokenizer")))
            ov.save_model(tokenizer, target)

    def _read(self) -> None:
        from optimum.intel import OVStableDiffusionPipeline

        self.size: tuple[int, int] | None = None
        self.pipe = OVStableDiffusionPipeline.from_pretrained(str(self.exported), compile=False, device="CPU")
        self.pipe.set_progress_bar_config(disable=True)

    def picture(self, width: int, height: int, steps: int) -> Picture:
        """Draw a picture; a change of the size reshapes and compiles the pipeline."""
        if self.size != (width, height):
            self.pipe.clear_requests()
            self.pipe.reshape(batch_size=1, height=height, width=width, num_images_per_prompt=1)
            self.pipe.compile()
            self.size = (width, height)
        return super().picture(width, height, steps)


class GenAI(Optimum):
    """openvino-genai's Text2ImagePipeline, one reshaped to each size; two of them are kept in memory."""

    counts_export = True

    def _read(self) -> None:
        self.adapters: Any = None
        self.pipes: dict[tuple[int, int], Any] = {}

    def _release(self) -> None:
        self.pipes = {}

    def _pipe(self, width: int, height: int) -> Any:
        import openvino_genai

        if (width, height) not in self.pipes:
            pipe = openvino_genai.Text2ImagePipeline(str(self.exported))
            pipe.set_scheduler(
                openvino_genai.Scheduler.from_config(
                    str(self.exported / "scheduler" / "scheduler_config.json"), openvino_genai.Scheduler.Type.DDIM
                )
            )
            pipe.reshape(1, height, width, GUIDANCE)
            pipe.compile("CPU", **({"adapters": self.adapters} if self.adapters else {}))
            while len(self.pipes) > 1:
                self.pipes.pop(next(iter(self.pipes)))
            self.pipes[width, height] = pipe
        return self.pipes[width, height]

    def picture(self, width: int, height: int, steps: int) -> Picture:
        """Draw a picture."""
        import openvino as ov
        import openvino_genai

        noise = latents_for(width, height).numpy()

        class Noise(openvino_genai.Generator):  # type: ignore[misc]
            def __init__(self) -> None:
                openvino_genai.Generator.__init__(self)

            def next(self) -> float:
                raise NotImplementedError("DDIM draws no noise of its own")

            def randn_tensor(self, shape: Any) -> ov.Tensor:
                if list(shape) != list(noise.shape):
                    raise ValueError(f"noise of shape {list(shape)} was asked for, {list(noise.shape)} is there")
                return ov.Tensor(noise.copy())

        ends: list[float] = []

        def step_ended(step: int, count: int, latent: Any) -> bool:
            ends.append(time.perf_counter())
            return False

        pipe = self._pipe(width, height)
        image = pipe.generate(
            PROMPT,
            width=width,
            height=height,
            num_inference_steps=steps,
            guidance_scale=GUIDANCE,
            generator=Noise(),
            callback=step_ended,
        )
        decode = time.perf_counter() - ends[-1]
        pixels = np.array(image.data)[0].astype(np.float32) / 255
        return Picture(pixels, [after - before for before, after in pairwise(ends)], decode)

    def lora(self, path: Path) -> None:
        """Create the pipelines again with the LoRA as an adapter; this needs no export."""
        import openvino_genai

        self._read()
        self.adapters = openvino_genai.AdapterConfig(
            openvino_genai.Adapter(str(path)), 1.0, mode=openvino_genai.AdapterConfig.Mode.MODE_FUSE
        )
