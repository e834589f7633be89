"""Settings > OpenVINO, and the axes of X/Y/Z plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from modules import scripts, shared

from ov_backend.core.settings import LOW_MEMORY, PRECISIONS
from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.hosts.webui.ahead import PREPARE_AHEAD
from ov_backend.hosts.webui.other_networks import OTHER_NETWORKS
from ov_backend.hosts.webui.session import session
from ov_backend.ui.choices import DESCRIPTION_SEPARATOR, Choices
from ov_backend.ui.panel import TEXTS, device_choices

SECTION = ("openvino", "OpenVINO")
ALWAYS_ON = "openvino_always_on"
PREPARE_AHEAD_LABEL = "Prepare networks before they are needed"
ALLOWED_HOSTS = "openvino_allowed_hosts"
_HOSTS_LABEL = "Names that this page may be opened under"
HOSTS_ADVICE = f'add it to Settings > OpenVINO > "{_HOSTS_LABEL}" ({ALLOWED_HOSTS})'
#: The field of the choices that each setting is the default of.
DEFAULTS = {
    "openvino_device": "device",
    "openvino_precision": "precision",
    "openvino_model_caching": "model_caching",
    "openvino_memory_mb": "memory_mb",
    "openvino_low_memory": "low_memory",
}
#: A value of the device axis: PyTorch generates this column.
PYTORCH = "PyTorch"
#: Attribute of a processing object that holds the values of its cell on the axes.
AXIS = "openvino_axis"


def defaults() -> Choices:
    """The choices of the settings page: the panel's initial values, and those of every generation if it is always on."""
    return read_defaults()[0]


def read_defaults() -> tuple[Choices, list[str]]:
    """The same, and a message for each setting that makes no sense and is replaced by the default.

    A setting may hold anything: the host's API and a request's ``override_settings`` write to it unchecked.
    """
    values = vars(Choices()).copy()
    values.update({field: getattr(shared.opts, name, values[field]) for name, field in DEFAULTS.items()})
    choices, messages = Choices.from_args(list(values.values()))
    return choices, [f"In Settings > OpenVINO, {message}" for message in messages]


def add_settings() -> None:
    """Add the section to the WebUI's settings."""
    default = Choices()
    device = shared.OptionInfo(default.device, "Device", gr.Dropdown, lambda: {"choices": _devices()})
    memory = {"minimum": 0, "maximum": 262144, "step": 256}
    options = {
        ALWAYS_ON: shared.OptionInfo(False, "Accelerate every generation").info(
            "also those of other scripts, such as X/Y/Z plot; the script need not be selected"
        ),
        "openvino_device": device.info("the panel's initial value too, like the settings below"),
        "openvino_precision": shared.OptionInfo(default.precision, "Precision", gr.Radio, {"choices": list(PRECISIONS)}),
        "openvino_model_caching": shared.OptionInfo(default.model_caching, TEXTS["model_caching"][0]),
        "openvino_memory_mb": shared.OptionInfo(default.memory_mb, TEXTS["memory_mb"][0], gr.Slider, memory).info(
            "0 is half of what this process may use"
        ),
        "openvino_low_memory": shared.OptionInfo(
            default.low_memory, TEXTS["low_memory"][0], gr.Radio, {"choices": list(LOW_MEMORY)}
        ).info(TEXTS["low_memory"][1]),
        PREPARE_AHEAD: shared.OptionInfo(True, PREPARE_AHEAD_LABEL, onchange=_forget_crashes).info(
            "while the prompt is encoded, after a model is loaded, and when the size fields change; only where OpenVINO was used"
            " with this kind of model before"
        ),
        OTHER_NETWORKS: shared.OptionInfo(True, "Other networks").info(
            "upscalers, face restorers, preprocessors and whatever else takes long in PyTorch; also in Extras and interrogation,"
            " if every generation is accelerated"
        ),
        ALLOWED_HOSTS: shared.OptionInfo("", _HOSTS_LABEL).info(
            "besides addresses, localhost, --server-name, this machine's own name and the share link; separated by commas"
        ),
    }
    for name, option in shared.options_section(SECTION, options).items():
        shared.opts.add_option(name, option)


def _forget_crashes() -> None:
    CrashSentinel(Path(session.cache_dir)).forget()


def _devices() -> list[str]:
    """Names of devices alone: a setting must not change when a device's description does."""
    return [entry.split(DESCRIPTION_SEPARATOR)[0] for entry in device_choices()[0]]


def add_axes() -> None:
    """Add device and precision to the axes of X/Y/Z plot, under every name that the WebUI has loaded that script as."""
    names = ("xyz_grid", "xyz_grid.py")
    for grid in {data.module for data in scripts.scripts_data if data.script_class.__module__.endswith(names)}:
        labels = {option.label for option in grid.axis_options}
        for field, choices in (("device", lambda: [*_devices(), PYTORCH]), ("precision", lambda: list(PRECISIONS))):
            label = f"[OpenVINO] {field}"
            if label not in labels:
                grid.axis_options.append(grid.AxisOption(label, str, _apply(field), choices=choices))


def _apply(field: str) -> Any:
    def apply(p: Any, value: str, values: Any) -> None:
        setattr(p, AXIS, {**getattr(p, AXIS, {}), field: value})

    return apply
