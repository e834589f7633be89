"""The panel: the controls by which a user chooses what runs in OpenVINO, the same in the WebUI and the standalone page.

It works with Gradio 3.41.2 (the WebUI's) and with current Gradio, which is imported only when a panel is built. Without
OpenVINO the panel is built all the same and tells the user what to install.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ov_backend.core.settings import LOW_MEMORY, PRECISIONS
from ov_backend.ui.choices import DESCRIPTION_SEPARATOR, INFOTEXT_FIELD, LABELS, SWITCHES, Choices
from ov_backend.ui.status_html import details_html, prepare_html, shares_html, status_html
from ov_backend.version import openvino_problem

NOT_INSTALLED = (
    "OpenVINO is not installed, so pictures are made by PyTorch as always. Restart the WebUI without"
    " --skip-install, or run: pip install openvino"
)

#: Sizes proposed to be prepared where nobody knows the checkpoint.
USUAL_SIZES = ("512x512", "512x768", "768x512")

#: Label and explanation of each field.
TEXTS: Mapping[str, tuple[str, str]] = {
    name: (LABELS[name], hint)
    for name, hint in {
        "device": "Where the networks run",
        "precision": "f32 is nearest to PyTorch's picture",
        "unet": "Most of a generation's time is spent here",
        "vae": "Decodes the picture from the result of the last step",
        "text_encoder": "Reads the prompt",
        "model_caching": "The next start need not convert the networks again",
        "memory_mb": "Above this, networks are dropped, first those that compile fastest. 0: half of what this process may use",
        "low_memory": "Moves PyTorch's weights to the disk once they are compiled. auto: only where memory is short. Linux only",
        "config_json": 'A JSON object such as {"PERFORMANCE_HINT": "LATENCY"}; docs/panel.md lists what is allowed',
    }.items()
}


def device_choices() -> tuple[list[str], str]:
    """The devices to choose from, each with its description, and a message for the user, or "".

    Without OpenVINO the CPU alone is listed, so that a panel can be built.
    """
    if importlib.util.find_spec("openvino") is None:
        return ["CPU"], NOT_INSTALLED
    problem = openvino_problem()
    if problem:
        return ["CPU"], f"{problem}. Then restart; until then pictures are made by PyTorch as always."
    try:
        from ov_backend.core import devices

        available = devices.list_devices()
    except Exception as error:  # a broken installation raises anything; the page has to load anyway
        return ["CPU"], f"OpenVINO does not start: {error}. Reinstall it with: pip install --force-reinstall openvino"
    names = [device.name for device in available]
    accelerators = [name for name in names if name != "CPU"]
    combined = {"AUTO": "OpenVINO chooses"}
    for other in accelerators if "CPU" in names else []:
        combined[f"AUTO:{other},CPU"] = f"{other}, and the CPU until it is ready"
        combined[f"HETERO:{other},CPU"] = f"{other}, and the CPU for what it cannot do"
    descriptions = {**{device.name: device.full_name for device in available}, **combined}
    listed = [f"{name}{DESCRIPTION_SEPARATOR}{description}" for name, description in descriptions.items()]
    if accelerators:
        return listed, ""
    return listed, "OpenVINO finds no GPU or NPU here; the CPU does the work. The first picture of each size takes longer."


def device_hint(listed: Sequence[str]) -> str:
    """The explanation of the devices; the combinations are explained where there is something to combine."""
    return TEXTS["device"][1] + "; AUTO and HETERO combine devices" * any(entry.startswith("HETERO") for entry in listed)


def precision_hint() -> str:
    """The explanation of the precisions, with what is known of the CPU here where OpenVINO is there to be asked."""
    hint = TEXTS["precision"][1]
    if importlib.util.find_spec("openvino") is None or openvino_problem():
        return hint
    try:
        from ov_backend.core import devices
        from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly

        cpu = next((device for device in devices.list_devices() if device.name == "CPU"), None)
        has_int8 = cpu is not None and multiplies_8_bits_exactly()
    except Exception:  # a broken installation raises anything; the note above the controls has said so
        return hint
    if cpu is None:
        return hint
    own = cpu.default_precision
    slower, still = (", and slower", " still") if own != "f32" else ("", "")
    int8 = f". int8 is faster{still}, after one picture that calibrates; a few pictures become other ones" if has_int8 else ""
    return f"auto is {own} on this CPU. {hint}{slower}{int8}"


def build_panel(
    tab: str, defaults: Choices | None = None, sizes: Sequence[str] = USUAL_SIZES, with_status: bool = True
) -> list[Any]:
    """Build the controls inside the current ``gr.Blocks``: what is used often first, the rest in a closed accordion.

    Args:
        tab: "txt2img" or "img2img"; every control's elem_id is ``openvino_{tab}_{field}``.
        defaults: the initial values.
        sizes: proposed to be prepared, as "512x768".
        with_status: whether the live status is a part of the panel; otherwise the page has it somewhere else.

    Returns:
        the components that hold the values of :class:`Choices`, in their order.
    """
    import gradio as gr

    defaults = defaults or Choices()
    devices, message = device_choices()
    texts = functools.partial(_texts, tab, defaults)

    with gr.Column(elem_id=f"openvino_{tab}_panel", elem_classes=["openvino-panel"]):
        if message:
            gr.HTML(f'<p class="openvino-note">{html.escape(message)}</p>', elem_id=f"openvino_{tab}_note")
        with gr.Row(elem_classes=["openvino-row"]):
            texts_of_device = {**texts("device"), "value": as_listed(defaults.device, devices), "info": device_hint(devices)}
            device = gr.Dropdown(choices=devices, allow_custom_value=True, scale=3, min_width=200, **texts_of_device)
            texts_of_precision = {**texts("precision"), "info": precision_hint()}
            precision = gr.Dropdown(choices=list(PRECISIONS), scale=2, min_width=160, **texts_of_precision)
            classes = ["openvino-refresh"]
            refresh = gr.Button("Look for devices", size="sm", elem_id=f"openvino_{tab}_refresh", elem_classes=classes)
        gr.HTML(prepare_html(tab, sizes), elem_id=f"openvino_{tab}_prepare")
        below = status_html(tab, [*TEXTS]) if with_status else shares_html(tab)
        gr.HTML(below, elem_id=f"openvino_{tab}_status")
        with gr.Accordion("More", open=False, elem_id=f"openvino_{tab}_more", elem_classes=["openvino-more"]):
            gr.HTML('<h2 class="openvino-heading">Settings</h2>')
            with gr.Row(elem_classes=["openvino-row"]):
                switches = [gr.Checkbox(min_width=200, **texts(field)) for field in SWITCHES]
                model_caching = gr.Checkbox(min_width=200, **texts("model_caching"))
                memory = gr.Number(precision=0, min_width=200, **texts("memory_mb"))
                low_memory = gr.Dropdown(choices=list(LOW_MEMORY), min_width=200, **texts("low_memory"))
            config = gr.Textbox(lines=1, max_lines=4, placeholder="{}", **texts("config_json"))
            problem = gr.HTML(elem_id=f"openvino_{tab}_problem", elem_classes=["openvino-problem"])
            gr.HTML(details_html(tab), elem_id=f"openvino_{tab}_details")
    refresh.click(lambda: gr.update(choices=device_choices()[0]), outputs=[device])
    config.blur(_config_error, inputs=[config], outputs=[problem])
    return [device, precision, *switches, model_caching, memory, config, low_memory]


def _texts(tab: str, defaults: Choices, field: str) -> dict[str, Any]:
    label, info = TEXTS[field]
    return {"label": label, "info": info, "elem_id": f"openvino_{tab}_{field}", "value": getattr(defaults, field)}


def _config_error(config: Any) -> str:
    """What is wrong with the properties typed in, as HTML, or ""."""
    _, messages = Choices.from_args([*dataclasses.astuple(dataclasses.replace(Choices(), config_json=config))])
    return "".join(f'<p class="openvino-note" role="alert">{html.escape(message)}</p>' for message in messages)


def as_listed(device: str, listed: Sequence[str]) -> str:
    """The entry of the list of devices for a device's name, or the bare name where the list has none."""
    return next((entry for entry in listed if entry.split(DESCRIPTION_SEPARATOR)[0] == device), device)


def paste_fields(
    components: Sequence[Any], report: Callable[[str], None] = lambda message: None
) -> list[tuple[Any, Callable[[Mapping[str, Any]], Any]]]:
    """The WebUI's ``infotext_fields``: each component with the function that reads its value from a picture's parameters.

    A picture without our field leaves the panel as it is. ``report`` is given a sentence for each value that is refused.
    """
    names = [field.name for field in dataclasses.fields(Choices)]
    return [(component, _reader(name, report)) for component, name in zip(components, names)]


def _reader(name: str, report: Callable[[str], None]) -> Callable[[Mapping[str, Any]], Any]:
    def read(parameters: Mapping[str, Any]) -> Any:
        if INFOTEXT_FIELD not in parameters:
            return None
        choices, messages = Choices.read_infotext(parameters[INFOTEXT_FIELD])
        for message in messages:
            if message.startswith(f"{LABELS[name]}: "):
                report(f"In the picture's parameters, {message}")
        value = getattr(choices, name)
        return as_listed(value, device_choices()[0]) if name == "device" else value

    return read
