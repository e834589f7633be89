"""What happens when something is pressed in the standalone page; its components are those of :mod:`page`."""

from __future__ import annotations

import dataclasses
import html
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ov_backend.errors import Interrupted, OVBackendError, SettingsError
from ov_backend.pipelines.sizes import size_like
from ov_backend.standalone.generated import Generated
from ov_backend.standalone.generator import PictureGenerator
from ov_backend.standalone.live_html import live_html
from ov_backend.standalone.samplers import NAMES
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters, refused_choices
from ov_backend.ui.panel import as_listed, device_choices
from ov_backend.ui.snapshot import INTERRUPTED

log = logging.getLogger(__name__)

#: Seconds between two looks at a generation that is running.
_LOOK_S = 0.2


class _Generation:
    """One generation in a thread of its own; a page that is closed does not end it."""

    def __init__(self, generator: PictureGenerator, parameters: Parameters, choices: Choices, picture: Any) -> None:
        self.generated: Generated | None = None
        self.error: Exception | None = None
        #: Set to interrupt this one alone, also while it waits for another page's.
        self.withdrawn = threading.Event()
        self._arguments = parameters, choices, picture, self.withdrawn
        self._thread = threading.Thread(target=self._run, args=(generator,), name="openvino-generate", daemon=True)
        self._thread.start()

    def _run(self, generator: PictureGenerator) -> None:
        try:
            self.generated = generator.generate(*self._arguments)
        except Exception as error:  # raised again in the thread that waits
            self.error = error

    def is_over(self, seconds: float) -> bool:
        """Wait for its end for some seconds; whether it is over."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


class Pages:
    """The generations that each page waits for, by its session, so that its Interrupt ends its own and no other page's."""

    def __init__(self, generator: PictureGenerator) -> None:
        self._generator = generator
        self._own: dict[str, list[_Generation]] = {}
        self._lock = threading.Lock()

    def add(self, session: str | None, generation: _Generation) -> None:
        """A page has asked for this generation."""
        with self._lock:
            self._own.setdefault(session or "", []).append(generation)

    def remove(self, session: str | None, generation: _Generation) -> None:
        """It is over, or the page is closed."""
        with self._lock:
            own = self._own.get(session or "", [])
            if generation in own:
                own.remove(generation)
            if not own:
                self._own.pop(session or "", None)

    def waits(self, session: str | None) -> bool:
        """Whether a page waits for a generation of its own."""
        with self._lock:
            return (session or "") in self._own

    def interrupt(self, session: str | None) -> None:
        """Interrupt what a page has asked for; a page that shows another one's generation, such as a reloaded one, ends that."""
        with self._lock:
            own = list(self._own.get(session or "", []))
        for generation in own:
            generation.withdrawn.set()
        if not own:
            self._generator.controller.stop()


def generate(
    generator: PictureGenerator,
    picture: Any,
    values: Sequence[Any],
    choice_values: Sequence[Any],
    pages: Pages | None = None,
    session: str | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Generate with the values of the page's fields; ``pages`` learns what the page of this ``session`` waits for.

    Yields:
        updates of Generate, Interrupt, the live view, the gallery and the message: at once, while it runs, and at the end.
    """
    import gradio as gr

    choices, messages = Choices.from_args(list(choice_values))
    for message in messages:
        generator.status.add_message(message)
    same = gr.update()
    waiting = gr.update(value="Generating …", interactive=False)
    yield waiting, gr.update(variant="stop", interactive=True), live_html("Beginning"), gr.update(visible=False), ""
    live, gallery, message = "", gr.update(visible=bool(generator.recent)), ""
    pages, generation = pages or Pages(generator), None
    try:
        parameters = _parameters(values, picture is not None)
        generation = _Generation(generator, parameters, choices, picture)
        pages.add(session, generation)
        while not generation.is_over(_LOOK_S):
            now = live_of(generator) if generator.current is parameters else live_html("Waiting for another page's picture")
            if now != live:
                live = now
                yield same, same, live, same, same
        if generation.error is not None:
            raise generation.error
        assert generation.generated is not None
        gallery = gr.update(value=_paths(generation.generated.files), visible=True)
        message = _of(generation.generated)
    except Interrupted:
        message = _note(INTERRUPTED, outcome="interrupted")
    except OVBackendError as error:
        message = _note(str(error), outcome="failure")
    except Exception as error:  # the page has to come back, whatever has failed
        log.exception("The generation failed.")
        message = _note(f"{type(error).__name__}: {error}", outcome="failure")
    finally:
        if generation is not None:
            pages.remove(session, generation)
    done = gr.update(value="Generate", interactive=True)
    yield done, gr.update(variant="secondary", interactive=pages.waits(session)), "", gallery, message


def live_of(generator: PictureGenerator) -> str:
    """The live view of the generation that is running."""
    snapshot = generator.status.snapshot()
    run, stage = snapshot["run"], snapshot["stage"]
    if stage is not None:
        return live_html(f"{stage['label']}, {stage['seconds']:.0f} s", picture=generator.preview)
    if not run or not run["active"]:
        return live_html("Finishing", picture=generator.preview)
    if run["step"] == 0:
        return live_html(run["what"])
    if run["step"] >= run["steps"]:
        return live_html("Decoding the picture", 1.0, generator.preview)
    return live_html(f"Step {run['step']} of {run['steps']}", run["step"] / run["steps"], generator.preview)


def recent(
    generator: PictureGenerator, pages: Pages | None = None, session: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """For a page that is loaded: the last pictures; while a generation runs its live view, and then its pictures.

    Yields:
        updates of Interrupt, of the live view and of the gallery, until the page waits for a generation of its own.
    """
    import gradio as gr

    pages, files = pages or Pages(generator), generator.recent
    live = ""
    # Generate may have been pressed before this reaches the page: what it shows since then stays
    yield gr.update(), gr.update(), gr.update(value=_paths(files), visible=bool(files))
    while generator.status.generating and not pages.waits(session):
        now = live_of(generator)
        if now != live:
            live = now
            yield gr.update(variant="stop", interactive=True), live, gr.update(visible=False)
        time.sleep(_LOOK_S)
    if (live or generator.recent != files) and not pages.waits(session):
        gallery = gr.update(value=_paths(generator.recent), visible=bool(generator.recent))
        yield gr.update(variant="secondary", interactive=False), "", gallery


def size_like_picture(generator: PictureGenerator, picture: Any) -> tuple[Any, Any]:
    """Width and height with the aspect ratio of a picture to start from; unchanged without one."""
    import gradio as gr

    if picture is None:
        return gr.update(), gr.update()
    width, height = picture.size
    return size_like(width, height, generator.default_size)


def restore(path: str | None) -> list[Any]:
    """From a picture's parameters: the values of the page's fields and of the panel, its accordion, and a message as HTML."""
    import gradio as gr
    from PIL import Image, UnidentifiedImageError

    unchanged_fields = [gr.update()] * len(vars(Parameters()))
    unchanged_panel = [gr.update()] * (len(vars(Choices())) + 1)
    try:
        with Image.open(path or "") as picture:
            text = str(picture.info.get("parameters", ""))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return [*unchanged_fields, *unchanged_panel, _note("This file is no picture that can be read.", outcome="failure")]
    if not text.strip():
        return [*unchanged_fields, *unchanged_panel, _note("This picture carries no parameters.", outcome="failure")]
    parameters, choices = Parameters.from_text(text)
    fields, messages = vars(parameters).copy(), ["Settings read from the picture."]
    if parameters.strength is None:
        fields["strength"] = gr.update()
    if parameters.sampler not in NAMES:
        fields["sampler"] = gr.update()
        messages += [f"Its sampler {parameters.sampler!r} is not here."] if parameters.sampler else []
    panel = unchanged_panel
    if choices is not None:
        panel = list({**vars(choices), "device": as_listed(choices.device, device_choices()[0])}.values())
        hidden = dataclasses.replace(choices, device=Choices.device, precision=Choices.precision)
        panel.append(gr.update(open=True) if hidden != Choices() else gr.update())
    return [*fields.values(), *panel, _note(" ".join([*messages, *refused_choices(text)]), "status")]


def _parameters(values: Sequence[Any], from_picture: bool) -> Parameters:
    prompt, negative, steps, guidance, seed, width, height, batch, strength, sampler = values
    try:
        return Parameters(
            prompt or "",
            negative or "",
            int(steps),
            float(guidance),
            int(seed),
            int(width),
            int(height),
            int(batch),
            float(strength) if from_picture else None,
            str(sampler or ""),
        )
    except (TypeError, ValueError, OverflowError):
        names = "steps, CFG scale, seed, width, height and batch size"
        raise SettingsError(f"A number is missing: {names} need one each.") from None


def _paths(files: Sequence[Path]) -> list[str]:
    return [str(path) for path in files]


def _of(generated: Generated) -> str:
    text = html.escape(generated.infotext).replace("\n", "<br>")
    parameters = f'<p class="openvino-parameters">{text}</p>'
    if generated.interrupted is None:
        return parameters
    step, steps = generated.interrupted
    return _note(f"Interrupted after step {step} of {steps}. This is the picture so far.", outcome="interrupted") + parameters


def _note(message: str, role: str = "alert", outcome: str = "") -> str:
    """A message as HTML; ``outcome`` colours its edge, as the panel's: "failure" or "interrupted"."""
    mark = f' data-openvino-outcome="{outcome}"' if outcome else ""
    return f'<p class="openvino-note" role="{role}"{mark}>{html.escape(message)}</p>'
