"""Settings > OpenVINO, and the axes of X/Y/Z plot."""

from __future__ import annotations

from typing import Any

import gradio as gr
from modules import scripts, shared

from ov_backend.settings import PRECISIONS
from ov_backend.ui.choices import Choices
from ov_backend.ui.panel import device_choices

SECTION = ("openvino", "OpenVINO")
ALWAYS_ON = "openvino_always_on"
#: Setting: the field of the choices that it is the default of.
DEFAULTS = {
    "openvino_device": "device",
    "openvino_precision": "precision",
    "openvino_model_caching": "model_caching",
    "openvino_memory_mb": "memory_mb",
}
#: On the device axis: this column is made by PyTorch.
PYTORCH = "PyTorch"
#: Attribute of a processing object that holds an axis's values.
AXIS = "openvino_axis"


def defaults() -> Choices:
    """The choices that the settings make: the panel's values at first, and those of every generation if always on."""
    known = Choices()
    values = {name: getattr(known, name) for name in vars(known)}
    values.update({field: getattr(shared.opts, name, values[field]) for name, field in DEFAULTS.items()})
    return Choices.from_args(list(values.values()))[0]


def add_settings() -> None:
    """Add the page to the WebUI's settings."""
    known = Choices()
    device = shared.OptionInfo(known.device, "Device", gr.Dropdown, lambda: {"choices": _devices()})
    memory = {"minimum": 0, "maximum": 262144, "step": 256}
    options = {
        ALWAYS_ON: shared.OptionInfo(False, "Accelerate every generation").info(
            "also those of other scripts, such as X/Y/Z plot; the script need not be selected"
        ),
        "openvino_device": device.info("also the panel's value at first, as are the following"),
        "openvino_precision": shared.OptionInfo(known.precision, "Precision", gr.Radio, {"choices": list(PRECISIONS)}),
        "openvino_model_caching": shared.OptionInfo(known.model_caching, "Keep prepared graphs on disk"),
        "openvino_memory_mb": shared.OptionInfo(known.memory_mb, "Memory for compiled networks in MiB", gr.Slider, memory).info(
            "0 is half of this machine's memory"
        ),
    }
    for name, option in shared.options_section(SECTION, options).items():
        shared.opts.add_option(name, option)


def _devices() -> list[str]:
    """Names of devices alone: a setting shall not change when a device's description does."""
    return [text.split(" ")[0] for text in device_choices()[0]]


def add_axes() -> None:
    """Add device and precision to the axes of X/Y/Z plot, whatever the page has loaded it as."""
    names = ("xyz_grid", "xyz_grid.py")
    for grid in {data.module for data in scripts.scripts_data if data.script_class.__module__.endswith(names)}:
        known = {option.label for option in grid.axis_options}
        for field, choices in (("device", lambda: [*_devices(), PYTORCH]), ("precision", lambda: list(PRECISIONS))):
            label = f"[OpenVINO] {field}"
            if label not in known:
                grid.axis_options.append(grid.AxisOption(label, str, _apply(field), choices=choices))


def _apply(field: str) -> Any:
    def apply(p: Any, value: str, values: Any) -> None:
        setattr(p, AXIS, {**getattr(p, AXIS, {}), field: value})

    return apply
