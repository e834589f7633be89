"""The standalone page: a prompt box, the pictures, and the panel (current Gradio)."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from typing import Any

from PIL import Image

from ov_backend.hosts.standalone import events, samplers
from ov_backend.hosts.standalone.events import Changes, live_html
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.hosts.standalone.lora_tags import lora_names
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.hosts.standalone.upscaler_files import missing_package
from ov_backend.hosts.standalone.visitors import Visitors
from ov_backend.pipelines.sizes import suggested_sizes
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import LANCZOS, Parameters
from ov_backend.ui.panel import build_panel
from ov_backend.ui.status_html import status_html

#: Pages that may wait for their pictures at once; these are made one after the other.
_MAX_WAITING = 16


#: The components of the page by name: the fields of :class:`Parameters` and :class:`Choices`, and what :mod:`events` changes.
Components = dict[str, Any]


def page(visitors: Visitors) -> Any:
    """The Gradio page."""
    import gradio as gr

    generator = visitors.generator

    with gr.Blocks(title="Stable Diffusion on OpenVINO", analytics_enabled=False) as blocks:
        components: Components = {"visitor": gr.Textbox(visible="hidden"), "chosen": gr.State("")}
        with gr.Column(elem_classes=["openvino-page"]):
            gr.HTML("<h1>Stable Diffusion on OpenVINO</h1>", elem_id="heading")
            with gr.Row(elem_id="top"):  # style.css puts the outcome beside the prompt and the settings, or between them
                with gr.Column(elem_id="wishes"):
                    components |= _models(generator)
                    components |= _prompts(generator)
                with gr.Column(elem_id="outcome"):
                    components |= _outcome()
                with gr.Column(elem_id="settings"):
                    components |= _settings(generator)
                    components |= _start_from(generator)
                    with gr.Column(elem_id="restore"):
                        components["restore"] = gr.UploadButton("Read settings from a picture", file_types=[".png"], size="sm")
                    components |= _panel(generator)
        _connect(visitors, blocks, components)
    return blocks


def initial_parameters(generator: PictureGenerator) -> Parameters:
    """What the page begins with."""
    side, suggestions = generator.default_size, suggestions_for(generator.model)
    steps, guidance = suggestions.steps, suggestions.guidance
    return Parameters(width=side, height=side, steps=steps, guidance=guidance, sampler=samplers.DEFAULT)


def _names(kind: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(kind)]


def _models(generator: PictureGenerator) -> Components:
    """The checkpoint, and LoRAs, where there is a choice."""
    import gradio as gr

    names, loras = list(generator.checkpoints), lora_names(generator.lora_folders)
    with gr.Row(visible=bool(len(names) > 1 or loras)):
        options: dict[str, Any] = {"label": "Checkpoint", "visible": len(names) > 1, "elem_id": "checkpoint"}
        checkpoint = gr.Dropdown(names, value=generator.model if names else None, **options)
        lora = gr.Dropdown(loras, value=None, label="Add a LoRA to the prompt", visible=bool(loras), elem_id="lora")
    return {"checkpoint": checkpoint, "lora": lora}


def _prompts(generator: PictureGenerator) -> Components:
    """The prompt, with examples, and the negative prompt."""
    import gradio as gr

    suggestions = suggestions_for(generator.model)
    prompt = gr.Textbox(label="Prompt", lines=2, placeholder="Ctrl+Enter generates", elem_id="prompt")
    if suggestions.prompts:
        examples = [[text] for text in suggestions.prompts]
        gr.Examples(examples, [prompt], label="Examples for this checkpoint", elem_id="examples", api_visibility="private")
    return {"prompt": prompt, "negative_prompt": gr.Textbox(label="Negative prompt", lines=1, elem_id="negative_prompt")}


def _settings(generator: PictureGenerator) -> Components:
    """The sampler and the numbers, with the buttons that set them."""
    import gradio as gr

    initial = initial_parameters(generator)
    with gr.Row():
        names = list(samplers.NAMES)
        sampler = gr.Dropdown(names, value=initial.sampler, label="Sampler", min_width=140, elem_id="sampler")
        steps = gr.Number(initial.steps, label="Steps", min_width=100, elem_id="steps")
    with gr.Row(elem_classes=["openvino-tooled"]):
        side: dict[str, Any] = {"step": 8, "min_width": 100}
        width = gr.Number(initial.width, label="Width", elem_id="width", **side)
        height = gr.Number(initial.height, label="Height", elem_id="height", **side)
        (swap,) = _tools(swap="Swap")
    with gr.Row(elem_classes=["openvino-sizes-row"]):
        for size in suggested_sizes(initial.width):
            button = gr.Button(f"{size[0]}x{size[1]}", size="sm", min_width=80, elem_id=f"size_{size[0]}x{size[1]}")
            button.click(lambda size=size: size, None, [width, height], show_progress="hidden", api_visibility="private")
    with gr.Row():
        guidance = gr.Number(initial.guidance, label="CFG scale", min_width=80, elem_id="guidance")
        batch = gr.Number(1, label="Batch size", min_width=80, elem_id="batch")
        number = gr.Number(1, label="Batch count", min_width=80, elem_id="batch_count")
    with gr.Row(elem_classes=["openvino-tooled"]):
        seed = gr.Number(-1, label="Seed", elem_id="seed")
        draw, reuse = _tools(random_seed="Random", reuse_seed="Reuse last")
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    swap.click(lambda w, h: (h, w), [width, height], [width, height], **hidden)
    draw.click(lambda: -1, None, [seed], **hidden)
    fields = {"sampler": sampler, "steps": steps, "width": width, "height": height}
    return {**fields, "guidance": guidance, "batch": batch, "count": number, "seed": seed, "reuse": reuse}


def _tools(**texts: str) -> list[Any]:
    """Small buttons beside the label of a field, by their names."""
    import gradio as gr

    with gr.Row(elem_classes=["openvino-tools"]):
        return [gr.Button(text, size="sm", min_width=0, elem_id=name) for name, text in texts.items()]


def _start_from(generator: PictureGenerator) -> Components:
    import gradio as gr

    with gr.Accordion("Start from a picture", open=False, elem_id="start_from") as accordion:
        gr.HTML("<p>Draw on it, and only what you have painted over is made anew.</p>", elem_classes=["openvino-hint"])
        options: dict[str, Any] = {"type": "pil", "buttons": [], "transforms": (), "sources": ("upload", "clipboard")}
        brush = gr.Brush(colors=["#ffffff"], color_mode="fixed")
        start = gr.ImageMask(label="Picture", brush=brush, elem_id="start", **options)
    with gr.Row():
        info = "1 is none; 2 makes the picture, enlarges it twice, and makes it once more"
        hires = gr.Number(1, label="Hires fix", info=info, step=0.25, min_width=140, elem_id="hires")
        info = missing_package() or "What enlarges it; networks such as ESRGAN are found in the folder upscaler"
        options = {"label": "Upscaler", "info": info, "min_width": 140, "elem_id": "upscaler"}
        upscaler = gr.Dropdown(generator.upscalers.names, value=LANCZOS, **options)
        label, info = "Denoising strength", "How much of the start changes, or of what hires fix has enlarged"
        strength = gr.Slider(0.05, 1.0, events.STRENGTH, step=0.05, label=label, info=info, min_width=140, elem_id="strength")
    return {"start": start, "start_from": accordion, "hires": hires, "upscaler": upscaler, "strength": strength}


def _panel(generator: PictureGenerator) -> Components:
    """Device, precision, preparing and statistics; the status line stands with the picture."""
    import gradio as gr

    with gr.Accordion("OpenVINO: device, precision, statistics", open=False, elem_id="openvino") as fold:
        sizes = [f"{width}x{height}" for width, height in suggested_sizes(generator.default_size)]
        panel = build_panel("txt2img", generator.defaults, sizes=sizes, with_status=False)
    # the accordions are opened where a picture changes what stands in them
    return {**dict(zip(_names(Choices), panel)), "openvino": fold, "more": _accordion_of(panel[-1])}


def _outcome() -> Components:
    import gradio as gr

    with gr.Row(elem_id="begin"):
        generate = gr.Button("Generate", variant="primary", elem_id="generate")
        interrupt = gr.Button("Interrupt", interactive=False, elem_id="interrupt")
    buttons: dict[str, Any] = {"buttons": ["download", "fullscreen"], "interactive": False}
    return {
        "generate": generate,
        "interrupt": interrupt,
        "live": gr.HTML(elem_id="live", padding=False),
        # hidden, because Gradio's box for no pictures has an element with a forbidden label
        "gallery": gr.Gallery(
            label="Pictures", visible=False, elem_id="gallery", format="png", columns=2, object_fit="contain", **buttons
        ),
        "status": gr.HTML(status_html("txt2img", _names(Choices), in_panel=False), elem_id="status", padding=False),
        "comparison": gr.ImageSlider(visible=False, format="png", elem_id="comparison", **buttons),
        **_actions(),
        "message": gr.HTML(elem_id="message", padding=False),
        "history": gr.Gallery(
            label="Made here", visible=False, elem_id="history", allow_preview=False, columns=1, buttons=[], interactive=False
        ),
        "compared": gr.Button("Show the comparison", visible="hidden", elem_id="compared"),
    }


def _actions() -> Components:
    """What can be done with the picture that is shown."""
    import gradio as gr

    with gr.Row(visible=False) as actions:
        use = gr.Button("Use these settings", size="sm", elem_id="use")
        again = gr.Button("Start from this picture", size="sm", elem_id="start_from_this")
    return {"actions": actions, "use": use, "again": again}


def _connect(visitors: Visitors, blocks: Any, components: Components) -> None:
    """What happens when something is pressed; :mod:`events` names the components that change."""
    import gradio as gr

    generator, visitor = visitors.generator, components["visitor"]
    inputs = [components[name] for name in ("start", "count", "checkpoint", *_names(Parameters), *_names(Choices))]
    count = len(_names(Parameters))
    changed = [*components.values()]
    hidden: dict[str, Any] = {"show_progress": "hidden"}

    def by_component(changes: Changes) -> dict[Any, Any]:
        return {components[name]: value for name, value in changes.items()} or gr.skip()  # an empty dict is an error there

    def generate(key: str, picture: Any, number: Any, model: str | None, *values: Any) -> Iterator[dict[Any, Any]]:
        yield from map(by_component, events.generate(visitors, key, picture, values[:count], values[count:], number, model))

    def choose_checkpoint(model: str) -> dict[Any, Any]:
        changes, problem = events.choose_checkpoint(generator, model)
        if problem:
            gr.Warning(problem)
        return by_component(changes)

    def reloaded(key: str) -> Iterator[dict[Any, Any]]:
        yield from map(by_component, events.reloaded(visitors, key))

    def restore(path: str) -> dict[Any, Any]:
        changes, sentence = events.restore(path, initial_parameters(generator), generator.upscalers.names)
        (gr.Info if changes else gr.Warning)(sentence)
        return by_component(changes)

    begins = [components["generate"].click, components["prompt"].submit]
    at_once = f"() => {json.dumps(live_html('Beginning'))}"  # by the browser: the server may be busy
    gr.on(begins, None, None, [components["live"]], js=at_once, api_visibility="private", **hidden)
    gr.on(begins, generate, [visitor, *inputs], changed, concurrency_limit=_MAX_WAITING, **hidden)
    components["interrupt"].click(visitors.interrupt, [visitor], queue=False)
    blocks.load(None, None, [visitor], js="() => OpenVINOPage.key()")
    blocks.load(reloaded, [visitor], changed, js="() => OpenVINOPage.key()", concurrency_limit=None, **hidden)
    _keep_settings(blocks, [components[name] for name in ("count", "checkpoint", *_names(Parameters), *_names(Choices))])
    for strip in ("history", "gallery"):
        _connect_strip(visitors, strip, components, by_component)
    components["checkpoint"].input(choose_checkpoint, [components["checkpoint"]], changed, **hidden)
    prompt, lora = components["prompt"], components["lora"]
    lora.input(lambda *given: by_component(events.add_lora(*given)), [prompt, lora], [prompt, lora], **hidden)
    start, chosen = components["start"], components["chosen"]
    size = [components["width"], components["height"]]
    start.upload(
        lambda given, *size: by_component(events.size_like_picture(generator, given, size)), [start, *size], size, **hidden
    )
    # told to the panel's scripts, which cannot look into the field; Gradio forgets what was read, so it is not read here
    started = gr.Checkbox(False, visible="hidden", elem_id="started")
    gr.on([start.upload, components["again"].click], lambda: True, None, [started], api_visibility="private", **hidden)
    start.clear(lambda: False, None, [started], api_visibility="private", **hidden)
    components["again"].click(lambda path: by_component(events.start_from(path)), [chosen], changed, **hidden)
    components["use"].click(restore, [chosen], changed, **hidden)
    components["restore"].upload(restore, [components["restore"]], changed, **hidden)
    components["reuse"].click(lambda key: events.last_seed(visitors, key), [visitor], [components["seed"]], **hidden)
    for shows in (components["compared"].click, blocks.load):
        shows(
            lambda key: comparison(visitors, key),
            [visitor],
            [components["comparison"]],
            js="() => OpenVINOPage.key()",
            **hidden,
        )


def _keep_settings(blocks: Any, settings: list[Any]) -> None:
    """Keep the settings in the browser, so that a page that is loaded again has them, unless it begins with other ones now."""
    import gradio as gr

    initial = [[component.value, getattr(component, "choices", None)] for component in settings]
    saved = gr.BrowserState(None, storage_key="openvino-settings", secret="openvino")
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    keep = f"(...values) => [{{initial: {json.dumps(json.dumps(initial))}, values}}]"
    gr.on([component.change for component in settings], None, settings, [saved], js=keep, **hidden)

    def restored(kept: Any) -> list[Any]:
        is_same = isinstance(kept, dict) and kept.get("initial") == json.dumps(initial)
        return kept["values"] if is_same else [gr.update()] * len(settings)

    blocks.load(restored, [saved], settings, **hidden)


def _connect_strip(visitors: Visitors, strip: str, components: Components, by_component: Any) -> None:
    """A click on a small picture shows it with its parameters."""
    import gradio as gr

    def choose(event: Any, key: str) -> dict[Any, Any]:
        name = event.value["image"]["orig_name"]
        return by_component(events.choose(visitors, key, name, strip == "history"))

    choose.__annotations__["event"] = gr.SelectData  # Gradio, which is imported here only, gives the event by this
    components[strip].select(choose, [components["visitor"]], [*components.values()], show_progress="hidden")


def _accordion_of(component: Any) -> Any:
    import gradio as gr

    while not isinstance(component, gr.Accordion):
        component = component.parent
    return component


def comparison(visitors: Visitors, key: str) -> Any:
    """The slider with both pictures of a comparison of a page's own; hidden again once another generation has begun."""
    import gradio as gr

    pictures, job = visitors.generator.controller.pictures, visitors.generator.status.job
    if not pictures or not visitors.has_compared(key) or job is None or (job.kind, job.state) != ("compare", "done"):
        return gr.update(value=None, visible=False)
    left, right = job.result["sides"].values()
    value = tuple(Image.open(io.BytesIO(picture)) for picture in pictures.values())
    return gr.update(value=value, label=f"{left} left, {right} right", visible=True)
