"""The standalone page: a prompt box, the pictures, and the panel (current Gradio)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from ov_backend.pipelines.sizes import suggested_sizes
from ov_backend.standalone import events, samplers
from ov_backend.standalone.generator import PictureGenerator
from ov_backend.standalone.live_html import live_html
from ov_backend.standalone.suggestions import suggestions_for
from ov_backend.ui.panel import build_panel

#: Pages that may wait for their pictures at once; these are made one after the other.
_MAX_WAITING = 16


@dataclass
class _Controls:
    """The components of the page.

    Attributes:
        fields: hold the values of :class:`Parameters`, in its order.
        panel: hold the values of :class:`Choices`, in its order; the last one stands in the panel's accordion.
    """

    fields: list[Any] = field(default_factory=list)
    panel: list[Any] = field(default_factory=list)


def page(generator: PictureGenerator) -> Any:
    """The Gradio page."""
    import gradio as gr

    with gr.Blocks(title="Stable Diffusion on OpenVINO", analytics_enabled=False) as blocks:
        gr.HTML("<h1>Stable Diffusion on OpenVINO</h1>")
        with gr.Row(elem_id="top"):  # style.css puts the outcome beside the prompt and the settings, or between them
            with gr.Column(elem_id="wishes"):
                prompts = _prompts(generator)
            with gr.Column(elem_id="outcome"):
                outcome = _outcome()
            with gr.Column(elem_id="settings"):
                sampler, *settings = _settings(generator)
                start, strength = _start_from()
                file = _restore_from()
        controls = _Controls([*prompts, *settings, strength, sampler])
        with gr.Accordion("OpenVINO", open=True, elem_id="openvino"):
            sizes = [f"{width}x{height}" for width, height in suggested_sizes(generator.default_size)]
            controls.panel = build_panel("txt2img", generator.defaults, sizes=sizes, with_pictures=False)
        _connect(generator, blocks, controls, start, file, outcome)
    return blocks


def _prompts(generator: PictureGenerator) -> list[Any]:
    """The prompt, with examples, and the negative prompt."""
    import gradio as gr

    suggestions = suggestions_for(generator.model)
    prompt = gr.Textbox(label="Prompt", lines=2, placeholder="Ctrl+Enter generates", elem_id="prompt")
    if suggestions.prompts:
        examples = [[text] for text in suggestions.prompts]
        gr.Examples(examples, [prompt], label="Examples for this checkpoint", elem_id="examples", api_visibility="private")
    return [prompt, gr.Textbox(label="Negative prompt", lines=1, elem_id="negative_prompt")]


def _settings(generator: PictureGenerator) -> list[Any]:
    """The sampler, then the numbers in the order of :class:`Parameters`."""
    import gradio as gr

    side, suggestions = generator.default_size, suggestions_for(generator.model)
    with gr.Row():
        sampler = gr.Dropdown(list(samplers.NAMES), value=samplers.DEFAULT, label="Sampler", min_width=140, elem_id="sampler")
        steps = gr.Number(suggestions.steps, label="Steps", precision=0, min_width=100, elem_id="steps")
    with gr.Row(elem_classes=["openvino-beside"]):
        width = gr.Number(side, label="Width", precision=0, step=8, min_width=100, elem_id="width")
        swap = gr.Button("Swap", size="sm", elem_id="swap", elem_classes=["openvino-tool"])
        height = gr.Number(side, label="Height", precision=0, step=8, min_width=100, elem_id="height")
    with gr.Row(elem_classes=["openvino-sizes-row"]):
        for size in suggested_sizes(side):
            button = gr.Button(f"{size[0]}x{size[1]}", size="sm", min_width=80, elem_id=f"size_{size[0]}x{size[1]}")
            button.click(lambda size=size: size, None, [width, height], show_progress="hidden", api_visibility="private")
    with gr.Row():
        guidance = gr.Number(suggestions.guidance, label="CFG scale", min_width=100, elem_id="guidance")
        batch = gr.Number(1, label="Batch size", precision=0, min_width=100, elem_id="batch")
    with gr.Row(elem_classes=["openvino-beside"]):
        seed = gr.Number(-1, label="Seed", precision=0, min_width=140, elem_id="seed")
        draw = gr.Button("Random", size="sm", elem_id="random_seed", elem_classes=["openvino-tool"])
        reuse = gr.Button("Reuse last", size="sm", elem_id="reuse_seed", elem_classes=["openvino-tool"])
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    swap.click(lambda w, h: (h, w), [width, height], [width, height], **hidden)
    draw.click(lambda: -1, None, [seed], **hidden)
    reuse.click(lambda: generator.last_seed, None, [seed], **hidden)
    return [sampler, steps, guidance, seed, width, height, batch]


def _start_from() -> tuple[Any, Any]:
    import gradio as gr

    with gr.Accordion("Start from a picture", open=False, elem_id="start_from"):
        text = "Drop an image file here to upload"  # as Gradio names the button to screen readers; they have to be the same
        start = gr.Image(label="Picture to start from", type="pil", image_mode="RGB", placeholder=text, elem_id="start")
        info = "How much of it changes"
        strength = gr.Slider(0.05, 1.0, 0.6, step=0.05, label="Denoising strength", info=info, elem_id="strength")
    return start, strength


def _restore_from() -> Any:
    import gradio as gr

    with gr.Accordion("Read settings from a picture", open=False, elem_id="restore_from"):
        return gr.File(label="A PNG made here or by the WebUI", file_types=[".png"], elem_id="restore")


@dataclass(frozen=True)
class _Outcome:
    """The components that a generation changes, and those of a comparison."""

    generate: Any
    interrupt: Any
    live: Any
    gallery: Any
    message: Any
    compared: Any
    slider: Any

    @property
    def of_generation(self) -> list[Any]:
        """In the order of :func:`events.generate`'s values."""
        return [self.generate, self.interrupt, self.live, self.gallery, self.message]


def _outcome() -> _Outcome:
    import gradio as gr

    with gr.Row():
        generate = gr.Button("Generate", variant="primary", elem_id="generate")
        interrupt = gr.Button("Interrupt", interactive=False, elem_id="interrupt")
    live = gr.HTML(elem_id="live")
    gallery = gr.Gallery(
        label="Pictures", visible=False, elem_id="gallery", format="png", columns=2, object_fit="contain"
    )  # Gradio's box for no pictures has an element with a forbidden label
    message = gr.HTML(elem_id="message")
    slider = gr.ImageSlider(visible=False, interactive=False, format="png", elem_id="comparison")
    compared = gr.Button("Show the comparison", visible="hidden", elem_id="compared")
    return _Outcome(generate, interrupt, live, gallery, message, compared, slider)


def _connect(
    generator: PictureGenerator, blocks: Any, controls: _Controls, start: Any, file: Any, outcome: _Outcome
) -> None:
    import gradio as gr

    pages = events.Pages(generator)

    def generate(request: Any, picture: Any, *values: Any) -> Iterator[tuple[Any, ...]]:
        count = len(controls.fields)
        yield from events.generate(generator, picture, values[:count], values[count:], pages, request.session_hash)

    def recent(request: Any) -> Iterator[tuple[Any, ...]]:
        yield from events.recent(generator, pages, request.session_hash)

    def interrupt(request: Any) -> None:
        pages.interrupt(request.session_hash)

    for asked in (generate, recent, interrupt):  # Gradio, which is imported here only, gives the request by this
        asked.__annotations__["request"] = gr.Request

    def like_picture(picture: Any) -> tuple[Any, Any]:
        return events.size_like_picture(generator, picture)

    width, height = controls.fields[5:7]
    begins = [outcome.generate.click, controls.fields[0].submit]
    at_once = f"() => {json.dumps(live_html('Beginning'))}"  # by the browser: the server may be busy
    gr.on(begins, None, None, [outcome.live], js=at_once, show_progress="hidden", api_visibility="private")
    gr.on(
        begins,
        generate,
        [start, *controls.fields, *controls.panel],
        outcome.of_generation,
        show_progress="hidden",
        concurrency_limit=_MAX_WAITING,
    )
    outcome.interrupt.click(interrupt, queue=False)
    outcome.compared.click(lambda: comparison(generator), None, [outcome.slider], show_progress="hidden")
    start.upload(like_picture, [start], [width, height], show_progress="hidden")
    more = _accordion_of(controls.panel[-1])  # opened where a picture changes what stands in it
    file.upload(events.restore, [file], [*controls.fields, *controls.panel, more, outcome.message])
    blocks.load(
        recent, None, [outcome.interrupt, outcome.live, outcome.gallery], show_progress="hidden", concurrency_limit=None
    )
    blocks.load(lambda: comparison(generator), None, [outcome.slider], show_progress="hidden")


def _accordion_of(component: Any) -> Any:
    import gradio as gr

    while not isinstance(component, gr.Accordion):
        component = component.parent
    return component


def comparison(generator: PictureGenerator) -> Any:
    """The slider with both pictures of a comparison; hidden again once another generation has begun."""
    import gradio as gr

    pictures, job = generator.controller.pictures, generator.status.job
    if not pictures or job is None or (job.kind, job.state) != ("compare", "done"):
        return gr.update(value=None, visible=False)
    left, right = job.result["sides"].values()
    value = tuple(Image.open(io.BytesIO(picture)) for picture in pictures.values())
    return gr.update(value=value, label=f"{left} left, {right} right", visible=True)
