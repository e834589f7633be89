"""The rows of a job as requests to a WebUI with this extension, one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.webui_files import link_checkpoints
from ov_backend.batch.row import Row
from tests.integration.e2e.client import WebUI, argument_list, started


def loop(rows: Sequence[Row], folder: Path, networks: str | None) -> tuple[float, float, float, int]:
    """Make every row's picture; the WebUI is started before and is not timed.

    Args:
        rows: with checkpoints in one folder and LoRAs in another.
        folder: of temporary files; the WebUI's settings and its store of graphs.
        networks: what the checkpoints of ``batch_lists`` are; None for others, which the WebUI knows how to load.

    Returns:
        seconds, seconds of CPU of the WebUI, seconds of preparing networks of the extension without loading checkpoints, and
        compiles.
    """
    loras = next(path.parent for row in rows for path, _ in row.loras)
    checkpoints = {row.checkpoint for row in rows}
    models = rows[0].checkpoint.parent
    if networks is not None:
        models = folder / "webui-models"
        link_checkpoints(sorted(checkpoints), networks, models)
    flags = ["--ckpt-dir", str(models), "--lora-dir", str(loras)]
    os.environ["OPENVINO_TORCH_CACHE_DIR"] = str(folder / "graphs-webui")
    (folder / "webui-home").mkdir()
    with started(Path(os.environ["WEBUI_DIR"]), os.environ["WEBUI_PYTHON"], folder / "webui-home", *flags) as webui:
        return _timed(webui, rows)


def _timed(webui: WebUI, rows: Sequence[Row]) -> tuple[float, float, float, int]:
    start, prepared, before, compiles = time.perf_counter(), 0.0, dict[str, int](), 0
    servers = [each for each in psutil.Process().children() if "launch.py" in each.cmdline()]
    cpu = _cpu(servers)
    for row in rows:
        answer = webui.accelerated(argument_list("auto"), **_fields(row))
        assert "UNet" in answer.ran, answer.field
        status = webui.api("/openvino/status")
        now = {name: int(stats["compiles"]) for name, stats in status["networks"].items()}
        compiles += sum(count - before.get(name, 0) if count >= before.get(name, 0) else count for name, count in now.items())
        prepared, before = prepared + _prepared(status["run"]), now
    return time.perf_counter() - start, _cpu(servers) - cpu, prepared, compiles


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _prepared(run: dict[str, Any]) -> float:
    """The seconds of a generation that prepared networks."""
    return float(run["shares"].get("preparing", 0.0) * run["seconds"])


def _fields(row: Row) -> dict[str, Any]:
    chosen = row.parameters
    return {
        "prompt": chosen.prompt, "negative_prompt": chosen.negative_prompt, "steps": chosen.steps, "width": chosen.width,
        "height": chosen.height, "cfg_scale": chosen.guidance, "seed": chosen.seed, "sampler_name": chosen.sampler,
        "checkpoint": row.checkpoint.name, "override_settings_restore_afterwards": False,
    }
