"""The peer that runs the pipeline in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.exported import Exported


class OnnxRuntime(Exported):
    """optimum-onnx's ORTStableDiffusionPipeline in float32: for a CPU, ONNX Runtime has no faster kernels in half precision."""

    def _write(self, checkpoint: Path, exported: Path) -> None:
        from optimum.exporters.onnx import main_export

        main_export(str(checkpoint), output=exported, task="text-to-image", library_name="diffusers", local_files_only=True)

    def _read(self) -> None:
        from optimum.onnxruntime import ORTStableDiffusionPipeline

        self.pipe = ORTStableDiffusionPipeline.from_pretrained(str(self.exported), provider="CPUExecutionProvider")
        self.pipe.set_progress_bar_config(disable=True)
