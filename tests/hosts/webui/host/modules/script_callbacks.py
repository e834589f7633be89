"""Callbacks that scripts register; loading the scripts forgets them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

callbacks: defaultdict[str, list[Callable[..., Any]]] = defaultdict(list)


@dataclass
class StepParams:
    x: Any
    sampling_step: int
    total_sampling_steps: int


def _on(name: str, callback: Callable[..., Any]) -> None:
    callbacks[name].append(callback)


on_ui_settings = partial(_on, "ui_settings")
on_before_ui = partial(_on, "before_ui")
on_app_started = partial(_on, "app_started")
on_cfg_denoiser = partial(_on, "cfg_denoiser")
on_cfg_after_cfg = partial(_on, "cfg_after_cfg")
on_script_unloaded = partial(_on, "script_unloaded")
on_model_loaded = partial(_on, "model_loaded")


def call(name: str, *args: Any) -> None:
    for callback in list(callbacks[name]):
        callback(*args)
