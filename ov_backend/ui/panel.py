"""The panel: the controls with which a user chooses what runs in OpenVINO, the same in the WebUI and the standalone page.

Works with Gradio 3.41.2 (the WebUI's) and with current Gradio, which is imported only when a panel is built. Without
OpenVINO the panel still builds, and says what to do.
"""

from __future__ import annotations

import dataclasses
import html
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ov_backend.settings import PRECISIONS
from ov_backend.ui.choices import DESCRIBED, INFOTEXT, Choices
from ov_backend.ui.status_html import status_html

__all__ = ["Choices", "build_panel", "device_choices", "paste_fields"]

NOT_INSTALLED = (
    "OpenVINO is not installed, so pictures are made by PyTorch as always. Restart the WebUI without"
    " --skip-install, or run: pip install openvino"
)

#: Field: (label, what it does).
TEXTS: Mapping[str, tuple[str, str]] = {
    "device": ("OpenVINO device", "Where the networks run; AUTO and HETERO combine devices"),
    "precision": ("Precision", "auto is the device's own choice and the fastest; f32 gives PyTorch's picture"),
    "unet": ("Run the UNet in OpenVINO", "Most of the time goes here"),
    "vae": ("Run the VAE in OpenVINO", "Makes the picture from the result of the last step"),
    "text_encoder": ("Run the text encoder in OpenVINO", "Reads the prompt"),
    "model_caching": ("Keep prepared graphs on disk", "The next start need not trace the networks again"),
    "memory_mb": (
        "Memory for compiled networks in MiB",
        "The least recently used ones go first; 0 is half of this machine's memory",
    ),
    "config_json": (
        "Further OpenVINO properties",
        'A JSON object such as {"PERFORMANCE_HINT": "LATENCY"}; properties that name files are refused',
    ),
}


def device_choices() -> tuple[list[str], str]:
    """The devices to choose from, each with its description, and a sentence for the user ("" when there is none to say).

    Without OpenVINO the CPU alone is listed, so that a panel can be built.
    """
    if importlib.util.find_spec("openvino") is None:
        return ["CPU"], NOT_INSTALLED
    try:
        from ov_backend import devices

        found = devices.list_devices()
    except Exception as error:  # a broken installation raises anything; the page must load all the same
        return ["CPU"], f"OpenVINO does not start: {error}. Reinstall it with: pip install --force-reinstall openvino"
    listed = [f"{device.name}{DESCRIBED}{device.full_name}" for device in found]
    names = [device.name for device in found]
    accelerators = [name for name in names if name != "CPU"]
    listed.append(f"AUTO{DESCRIBED}OpenVINO chooses")
    for other in accelerators if "CPU" in names else []:
        listed.append(f"AUTO:{other},CPU{DESCRIBED}{other}, and the CPU until it is ready")
        listed.append(f"HETERO:{other},CPU{DESCRIBED}{other}, and the CPU for what it cannot do")
    if accelerators:
        return listed, ""
    return listed, "OpenVINO finds no GPU or NPU here; the CPU does the work. The first picture of each size takes longer."


def build_panel(tab: str, defaults: Choices | None = None) -> list[Any]:
    """Build the controls inside the current ``gr.Blocks``.

    Args:
        tab: "txt2img" or "img2img"; every control's elem_id is ``openvino_{tab}_{field}``.
        defaults: the values at first.

    Returns:
        the components whose values make :class:`Choices`, in that order.
    """
    import gradio as gr

    defaults = defaults or Choices()
    listed, said = device_choices()

    def texts(field: str) -> dict[str, Any]:
        label, info = TEXTS[field]
        return {"label": label, "info": info, "elem_id": f"openvino_{tab}_{field}", "value": getattr(defaults, field)}

    with gr.Column(elem_id=f"openvino_{tab}_panel", elem_classes=["openvino-panel"]):
        if said:
            gr.HTML(f'<p class="openvino-note">{html.escape(said)}</p>', elem_id=f"openvino_{tab}_note")
        with gr.Row():
            given = {**texts("device"), "value": described(defaults.device, listed)}
            device = gr.Dropdown(choices=listed, allow_custom_value=True, **given)
            refresh = gr.Button("Look for devices", elem_id=f"openvino_{tab}_refresh", elem_classes=["openvino-refresh"])
            precision = gr.Dropdown(choices=list(PRECISIONS), **texts("precision"))
        with gr.Row():
            switches = [gr.Checkbox(min_width=220, **texts(field)) for field in ("unet", "vae", "text_encoder")]
        with gr.Row():
            model_caching = gr.Checkbox(min_width=220, **texts("model_caching"))
            memory = gr.Number(precision=0, min_width=220, **texts("memory_mb"))
        config = gr.Textbox(lines=1, max_lines=4, placeholder="{}", **texts("config_json"))
        problem = gr.HTML(elem_id=f"openvino_{tab}_problem", elem_classes=["openvino-problem"])
        gr.HTML(status_html(tab, {field: info for field, (_, info) in TEXTS.items()}), elem_id=f"openvino_{tab}_status")
    refresh.click(lambda: gr.update(choices=device_choices()[0]), outputs=[device])
    config.blur(_problem, inputs=[config], outputs=[problem])
    return [device, precision, *switches, model_caching, memory, config]


def _problem(config: Any) -> str:
    """What is wrong with the properties typed in, as HTML, or nothing."""
    _, said = Choices.from_args([*dataclasses.astuple(Choices())[:-1], config])
    return "".join(f'<p class="openvino-note" role="alert">{html.escape(sentence)}</p>' for sentence in said)


def described(device: str, listed: Sequence[str]) -> str:
    """A device as the list shows it, or its bare name where the list lacks it."""
    return next((text for text in listed if text.split(DESCRIBED)[0] == device), device)


def paste_fields(components: Sequence[Any], key: str = INFOTEXT) -> list[tuple[Any, Callable[[Mapping[str, Any]], Any]]]:
    """What the WebUI calls ``infotext_fields``: how each component is set from a picture's parameters.

    A picture without the field leaves the panel as it is.
    """
    names = [field.name for field in dataclasses.fields(Choices)]
    return [(component, _paste(name, key)) for component, name in zip(components, names)]


def _paste(name: str, key: str) -> Callable[[Mapping[str, Any]], Any]:
    def value(parameters: Mapping[str, Any]) -> Any:
        if key not in parameters:
            return None
        chosen = getattr(Choices.from_infotext(parameters[key]), name)
        return described(chosen, device_choices()[0]) if name == "device" else chosen

    return value
