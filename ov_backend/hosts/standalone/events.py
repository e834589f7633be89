"""What happens when something is pressed in the standalone page; its components are those of :mod:`page`."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from ov_backend.core.errors import Interrupted, OVBackendError, SettingsError
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.hosts.standalone.limits import with_usable_numbers
from ov_backend.hosts.standalone.lora_tags import lora_tag
from ov_backend.hosts.standalone.pipeline_call import Masked
from ov_backend.hosts.standalone.samplers import NAMES
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.hosts.standalone.visitors import Generation, Visitors
from ov_backend.pipelines.sizes import size_like
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import LANCZOS, Parameters, png, refused_choices
from ov_backend.ui.panel import as_listed, device_choices
from ov_backend.ui.snapshot import failure_text

log = logging.getLogger(__name__)

#: Seconds between two looks at a generation that is running.
_LOOK_S = 0.2
#: How much of a picture to start from changes, where nobody has chosen.
STRENGTH = 0.6
#: Batches that may be asked for at once.
MAX_COUNT = 100
#: Characters of a picture's parameters.
_MAX_TEXT = 100_000


#: Changes of the page's components by their names (``page.Components``); the others stay as they are.
Changes = dict[str, Any]


def generate(
    visitors: Visitors,
    key: str,
    picture: Any,
    values: Sequence[Any],
    choice_values: Sequence[Any],
    count: Any = 1,
    model: str | None = None,
) -> Iterator[Changes]:
    """Generate ``count`` times with the values of a page's fields; ``key`` is the page's own, ``model`` a checkpoint's name.

    Yields:
        what changes at once, while it runs, and at the end.
    """
    choices, messages = Choices.from_args(list(choice_values))
    for message in messages:
        visitors.generator.status.add_message(message)
    yield _busy()
    try:
        start = start_of(picture)
        parameters = _parameters(values, start is not None)
        generation = Generation(visitors, key, parameters, choices, start, _count(count), model or "")
        yield from _watch(generation)
        if generation.error is not None and not (generation.files and isinstance(generation.error, Interrupted)):
            raise generation.error
        assert generation.generated is not None
        changes = _shown(generation.files, _interruption(generation))
    except Exception as error:  # the page has to come back, whatever has failed
        if not isinstance(error, OVBackendError):
            log.exception("The generation failed.")
        changes = _only(_note(failure_text(error), outcome="interrupted" if isinstance(error, Interrupted) else "failure"))
    yield {**_idle(visitors, key), **changes}


def reloaded(visitors: Visitors, key: str) -> Iterator[Changes]:
    """For a page that is loaded: its own last picture; while a generation of its own runs the live view, and then its picture.

    Another page's pictures are not shown.
    """
    running = visitors.running(key)
    yield {"history": _strip(visitors, key), **_shown(visitors.made(key)[:1])}
    if running is not None:
        yield _busy()
        yield from _watch(running)
        yield {**_idle(visitors, key), **_shown(visitors.made(key)[:1])}


def _watch(generation: Generation) -> Iterator[Changes]:
    """What changes while a generation runs."""
    import gradio as gr

    live, number = "", 1
    while not generation.is_over(_LOOK_S):
        waits = "" if generation.has_turn else "Waiting for another page's picture"
        now = live_html(waits, generation.preview)
        if now != live:
            live = now
            yield {"live": live}
        if number < generation.number <= generation.count:
            number = generation.number
            text = f"Generating {number} of {generation.count} …"
            yield {"generate": gr.update(value=text, interactive=False), "history": _strip(generation.visitors, generation.key)}


def _busy() -> Changes:
    import gradio as gr

    generate = gr.update(value="Generating …", interactive=False)
    interrupt = gr.update(variant="stop", interactive=True)
    return {"generate": generate, "interrupt": interrupt, "live": live_html("Beginning"), **_only("")}


def _idle(visitors: Visitors, key: str) -> Changes:
    import gradio as gr

    waits = visitors.running(key) is not None
    interrupt = gr.update(variant="stop" if waits else "secondary", interactive=waits)
    generate = gr.update(value="Generate", interactive=True)
    return {"generate": generate, "interrupt": interrupt, "live": "", "history": _strip(visitors, key)}


def _strip(visitors: Visitors, key: str) -> Any:
    import gradio as gr

    files = visitors.made(key)
    return gr.update(value=[*map(str, files)], visible=bool(files), selected_index=None)


def _only(message: str) -> Changes:
    """A message in the place of the picture."""
    import gradio as gr

    return {"gallery": gr.update(visible=False), "message": message, "actions": gr.update(visible=False)}


def _shown(files: Sequence[Path], note: str = "") -> Changes:
    """Pictures, with where they are and the parameters of the first one, which the buttons below are about."""
    import gradio as gr

    if not files:
        return _only(note)
    gallery = gr.update(value=[*map(str, files)], visible=True, selected_index=None)
    return {"gallery": gallery, **_about(files[0], note, len(files))}


def _about(path: Path, note: str = "", count: int = 1) -> Changes:
    import gradio as gr

    text = html.escape(parameters_of(path)).replace("\n", "<br>")
    others = f" and {count - 1} more" if count > 1 else ""
    saved = f"Saved as {html.escape(str(path))}{others}."
    message = f'{note}<p class="openvino-parameters">{text}</p><p class="openvino-saved">{saved}</p>'
    return {"message": message, "actions": gr.update(visible=True), "chosen": str(path)}


def choose(visitors: Visitors, key: str, name: str, from_history: bool = True) -> Changes:
    """Show one of the page's own pictures, by its file's name; nothing changes where the page has none such.

    Args:
        visitors: whose pictures are whose.
        key: the page's.
        name: of the picture's file.
        from_history: whether the picture is not shown yet.
    """
    path = next((path for path in visitors.made(key) if path.name == name), None)
    if path is None:
        return {}
    return _shown([path]) if from_history else _about(path)


def last_seed(visitors: Visitors, key: str) -> int:
    """The seed of the page's last generation; -1 before the first."""
    files = visitors.made(key)
    return Parameters.from_text(parameters_of(files[0]))[0].seed if files else -1


def parameters_of(path: str | Path) -> str:
    """The parameters that a picture carries, or ""; a file that cannot be read carries none."""
    try:
        with Image.open(path) as picture:
            return str(picture.info.get("parameters", "")).strip()
    except (OSError, ValueError, Image.DecompressionBombError):  # a ValueError for texts that are too long for Pillow
        return ""


def choose_checkpoint(generator: PictureGenerator, model: str) -> tuple[Changes, str]:
    """Load a checkpoint, and propose what suits it; what changes, and what is wrong, or ""."""
    try:
        generator.load(model)
    except OVBackendError as error:
        return {"checkpoint": generator.model}, str(error)
    side, suggestions = generator.default_size, suggestions_for(model)
    return {"width": side, "height": side, "steps": suggestions.steps, "guidance": suggestions.guidance}, ""


def add_lora(prompt: str | None, name: str | None) -> Changes:
    """Add a LoRA to the prompt, at full strength."""
    return {"prompt": f"{prompt or ''} {lora_tag(name, 1.0)}".strip(), "lora": None} if name else {}


def size_like_picture(generator: PictureGenerator, picture: Any, size: tuple[Any, Any]) -> Changes:
    """Width and height with the aspect ratio of a picture to start from; unchanged where it has the ``size`` that is set."""
    start = start_of(picture)
    if start is None:
        return {}
    shown = start.picture if isinstance(start, Masked) else start
    if shown.size == size:  # Gradio says "uploaded" of a picture that start_from has set, too
        return {}
    width, height = size_like(shown.width, shown.height, generator.default_size)
    return {"width": width, "height": height}


def start_of(value: Any) -> Image.Image | Masked | None:
    """What a picture is started from, as the field holds it: a picture, and layers in which a mask was drawn."""
    if value is None or value["background"] is None:
        return None
    picture = value["background"].convert("RGB")
    masks = [layer.getchannel("A") for layer in value["layers"] if layer is not None]
    mask = functools.reduce(ImageChops.lighter, masks, Image.new("L", picture.size))
    return Masked(picture, mask) if mask.getbbox() else picture


def start_from(path: str) -> Changes:
    """Take a picture that was made here as the one to start from, in its own size."""
    import gradio as gr

    with Image.open(path) as picture:
        start = picture.convert("RGB")
    field = {"background": start, "layers": [], "composite": None}
    return {"start": field, "start_from": gr.update(open=True), "width": start.width, "height": start.height}


def restore(path: str, initial: Parameters, upscalers: Sequence[str] = (LANCZOS,)) -> tuple[Changes, str]:
    """Set the page from a picture's parameters; what it does not have becomes as it was at the start.

    Args:
        path: of the picture.
        initial: what the page begins with.
        upscalers: the names of those that are here.

    Returns:
        what changes, and a sentence for the user.
    """
    import gradio as gr

    text = parameters_of(path)
    if not text:
        return {}, "This file is no picture that carries parameters; take a PNG made here or by the WebUI."
    if len(text) > _MAX_TEXT:
        return {}, f"The picture's parameters have {len(text)} characters; at most {_MAX_TEXT} are read, so take another picture."
    told, choices = Parameters.from_text(text, initial)
    parameters = with_usable_numbers(told, initial)
    changes: Changes = {**vars(parameters), "start": None, "count": 1}
    messages = ["Settings read from the picture."]
    if parameters != told:
        messages.append("A number of it is out of bounds, the one of the start takes its place.")
    if parameters.strength is None:
        changes["strength"] = STRENGTH
    elif parameters.hires == 1:
        messages.append("It was started from another picture, which it does not hold; give that one again.")
    if parameters.sampler not in NAMES:
        changes["sampler"] = gr.update()
        messages.append(f"Its sampler {parameters.sampler!r} is not here.")
    if parameters.upscaler not in upscalers:
        changes["upscaler"] = LANCZOS
        messages.append(f"Its upscaler {parameters.upscaler!r} is not here, {LANCZOS} takes its place.")
    if choices is not None:
        changes |= {**vars(choices), "device": as_listed(choices.device, device_choices()[0])}
        hidden = dataclasses.replace(choices, device=Choices.device, precision=Choices.precision)
        if hidden != Choices():
            changes |= {"openvino": gr.update(open=True), "more": gr.update(open=True)}
    return changes, " ".join([*messages, *refused_choices(text)])


def _parameters(values: Sequence[Any], from_picture: bool) -> Parameters:
    prompt, negative, steps, guidance, seed, width, height, batch, strength, sampler, hires, upscaler = values
    try:
        hires = float(hires)
        return Parameters(
            prompt or "",
            negative or "",
            _whole(steps),
            float(guidance),
            _whole(seed),
            _whole(width),
            _whole(height),
            _whole(batch),
            float(strength) if from_picture or hires != 1 else None,
            str(sampler or ""),
            hires,
            str(upscaler or LANCZOS),
        )
    except (TypeError, ValueError, OverflowError):
        names = "steps, CFG scale, seed, width, height, batch size and hires fix"
        raise SettingsError(f"A number is missing: {names} need one each.") from None


def _whole(value: Any) -> Any:
    """A number as a whole one, unless it has a fraction, which is refused as any other number out of bounds is."""
    return int(value) if int(value) == float(value) else value


def _interruption(generation: Generation) -> str:
    """A note where a generation was interrupted, else ""."""
    if generation.error is not None:
        return _note(f"Interrupted after {generation.number - 1} of {generation.count}.", outcome="interrupted")
    interrupted = generation.generated.interrupted if generation.generated is not None else None
    if interrupted is None:
        return ""
    step, steps = interrupted
    return _note(f"Interrupted after step {step} of {steps}. This is the picture so far.", outcome="interrupted")


def _count(count: Any) -> int:
    """Read how often to generate.

    Raises:
        SettingsError: it is no number, or too large.
    """
    if not isinstance(count, (int, float)) or not 1 <= count <= MAX_COUNT or count != int(count):
        raise SettingsError(f"Batch count is {count}; it must be a whole number from 1 to {MAX_COUNT}.")
    return int(count)


def _note(message: str, role: str = "alert", outcome: str = "") -> str:
    """A message as HTML; ``outcome`` colours its edge, as the panel's: "failure" or "interrupted"."""
    mark = f' data-openvino-outcome="{outcome}"' if outcome else ""
    return f'<p class="openvino-note" role="{role}"{mark}>{html.escape(message)}</p>'


def live_html(text: str = "", picture: Image.Image | None = None) -> str:
    """The live view.

    Args:
        text: shown while there is no preview; what happens now stands in the status line.
        picture: a preview, small; the page scales it.
    """
    inside = f"<p>{html.escape(text)}</p>"
    if picture is not None:
        inside = f'<img alt="Preview" src="data:image/png;base64,{base64.b64encode(png(picture)).decode()}">'
    return f'<div class="openvino-live">{inside}</div>'
