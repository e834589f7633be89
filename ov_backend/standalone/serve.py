"""The standalone page: the panel and a prompt box for one pipeline, without a WebUI (current Gradio)."""

from __future__ import annotations

import html
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ov_backend.errors import Interrupted, OVBackendError, SettingsError
from ov_backend.standalone.generator import PictureGenerator
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters, refused_choices
from ov_backend.ui.panel import as_listed, build_panel, device_choices

log = logging.getLogger("ov_backend")

#: The folder of the page's scripts and style; the WebUI loads the same files by itself.
ROOT = Path(__file__).parents[2]
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Options:
    """Options of the command ``serve``.

    Attributes:
        checkpoint: a .safetensors file; None is the project's own, or a random one.
        random: use a small checkpoint of random weights.
        host: address to listen at.
        port: port to listen at; 0 is any free one.
        out: folder that the pictures are written to.
        cache_dir: folder of the graph store; None is the user's cache folder.
        auth: the login to ask for, "user:password", or None.
        allow_host: further names that the page may be opened under, where no login is asked for.
    """

    checkpoint: Path | None = None
    random: bool = False
    host: str = "127.0.0.1"
    port: int = 7865
    out: Path = Path("out")
    cache_dir: str | None = None
    auth: str | None = None
    allow_host: tuple[str, ...] = ()


def serve(options: Options, announce: Callable[[str], None]) -> int:
    """Serve until interrupted; calls ``announce`` with the address once the page can be opened.

    Raises:
        OVBackendError: the checkpoint, the address or an option cannot be used.
    """
    import uvicorn

    auth = login(options.auth)
    try:
        listening = socket.create_server((options.host, options.port))
    except (OSError, OverflowError, ValueError) as error:  # a ValueError for what is no name of a host
        address = f"{options.host}:{options.port}"
        raise SettingsError(f"Cannot listen at {address}: {error}. Choose another --port or --host.") from error
    with listening:
        app = application(load(options), auth, (options.host, *options.allow_host))
        if options.host not in _LOOPBACK and auth is None:
            log.warning("Everybody who reaches this machine can use the page; --auth USER:PASSWORD asks for a login.")
        announce(f"http://{options.host}:{listening.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    return 0


def load(options: Options) -> PictureGenerator:
    """A picture generator for the checkpoint.

    Raises:
        CheckpointError: the file is no checkpoint that can be read.
        SettingsError: both a checkpoint and a random one are asked for.
    """
    from ov_backend.checkpoint import load_pipeline
    from ov_backend.standalone.demo import checkpoint_file

    path = checkpoint_file(options.checkpoint, options.random)
    return PictureGenerator(load_pipeline(path), path.stem, options.out.resolve(), options.cache_dir)


def login(text: str | None) -> tuple[str, str] | None:
    """Read ``--auth`` into user and password.

    Raises:
        SettingsError: one of them is missing.
    """
    if text is None:
        return None
    user, _, password = text.partition(":")
    if not user or not password:
        raise SettingsError("--auth must be USER:PASSWORD, both of them not empty.")
    return user, password


def application(generator: PictureGenerator, auth: tuple[str, str] | None = None, names: Sequence[str] = ()) -> Any:
    """The page and the panel's routes as one ASGI application; ``names`` are those of this server besides the usual ones."""
    import gradio as gr
    from fastapi import FastAPI

    from ov_backend.standalone.host_guard import HostGuard
    from ov_backend.ui.auth import has_password
    from ov_backend.ui.hosts import KnownHosts
    from ov_backend.ui.routes import add_routes

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    is_allowed = (lambda request: has_password(request.headers, dict([auth]))) if auth else None
    known_hosts = KnownHosts(lambda: names, "start serve with --allow-host and this name", lambda request: auth is None)
    add_routes(app, generator.controller, is_allowed, known_hosts)
    if auth is None:
        app.add_middleware(HostGuard, known_hosts=known_hosts)
    style = ROOT / "style.css"
    return gr.mount_gradio_app(
        app,
        page(generator),
        path="/",
        auth=auth,
        allowed_paths=[str(generator.folder)],
        theme=_theme(),
        css=style.read_text(encoding="utf-8"),
        head="".join(f"<script>{path.read_text(encoding='utf-8')}</script>" for path in _scripts()),
        footer_links=[],
        ssr_mode=False,
    )


def _theme() -> Any:
    """Gradio's default theme, with fonts that every machine has and texts of enough contrast."""
    import gradio as gr

    theme = gr.themes.Default(
        primary_hue="blue", neutral_hue="slate", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    return theme.set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_dark="*primary_600",
        button_primary_text_color="white",
        button_primary_text_color_dark="white",
    )


def _scripts() -> list[Path]:
    return sorted((ROOT / "javascript").glob("*.js"))


def page(generator: PictureGenerator) -> Any:
    """The Gradio page."""
    import gradio as gr

    side = generator.default_size
    with gr.Blocks(title="Stable Diffusion on OpenVINO", analytics_enabled=False) as blocks:
        gr.HTML("<h1>Stable Diffusion on OpenVINO</h1>")
        with gr.Row():
            with gr.Column(scale=3):
                prompt = gr.Textbox(label="Prompt", lines=2, elem_id="prompt")
                negative = gr.Textbox(label="Negative prompt", lines=1, elem_id="negative_prompt")
                with gr.Row():
                    steps = gr.Number(20, label="Steps", precision=0, minimum=1, elem_id="steps")
                    guidance = gr.Number(7.0, label="Guidance", info="How closely the prompt is followed", elem_id="guidance")
                    seed = gr.Number(-1, label="Seed", info="-1 draws one", precision=0, elem_id="seed")
                with gr.Row():
                    width = gr.Number(side, label="Width", precision=0, step=8, elem_id="width")
                    height = gr.Number(side, label="Height", precision=0, step=8, elem_id="height")
                    batch = gr.Number(1, label="Pictures", precision=0, minimum=1, elem_id="batch")
                with gr.Accordion("Start from a picture", open=False, elem_id="start_from"):
                    start = gr.Image(label="Picture to start from", type="pil", image_mode="RGB", elem_id="start")
                    strength = gr.Slider(0.05, 1.0, 0.6, step=0.05, label="How much of it changes", elem_id="strength")
                with gr.Accordion("Read settings from a picture", open=False, elem_id="restore_from"):
                    file = gr.File(label="A PNG made here or by the WebUI", file_types=[".png"], elem_id="restore")
            with gr.Column(scale=2):
                with gr.Row():
                    generate_button = gr.Button("Generate", variant="primary", elem_id="generate")
                    interrupt_button = gr.Button("Interrupt", elem_id="interrupt")
                message = gr.HTML(elem_id="message")
                gallery = gr.Gallery(label="Pictures", elem_id="gallery", format="png", columns=2, object_fit="contain")
        with gr.Accordion("OpenVINO", open=True, elem_id="openvino"):
            panel = build_panel("txt2img")
        fields = [prompt, negative, steps, guidance, seed, width, height, batch, strength]

        def generate(picture: Any, *values: Any) -> tuple[Any, str]:
            return _generate(generator, picture, values[: len(fields)], values[len(fields) :])

        def recent() -> Iterator[list[str]]:
            yield from _recent(generator)

        generate_button.click(generate, [start, *fields, *panel], [gallery, message], show_progress="hidden")
        prompt.submit(generate, [start, *fields, *panel], [gallery, message], show_progress="hidden")
        interrupt_button.click(generator.interrupt, queue=False)
        file.upload(_restore, [file], [*fields, *panel, message])
        blocks.load(recent, None, [gallery], show_progress="hidden", concurrency_limit=None)
    return blocks


def _generate(generator: PictureGenerator, picture: Any, values: Sequence[Any], choice_values: Sequence[Any]) -> tuple[Any, str]:
    """Generate with the values of the page's fields; returns the gallery, and the parameters or an error as HTML."""
    import gradio as gr

    choices, messages = Choices.from_args(list(choice_values))
    for message in messages:
        generator.status.add_message(message)
    try:
        generated = generator.generate(_parameters(values, picture is not None), choices, picture)
    except Interrupted:
        return gr.update(), _note("Interrupted.")
    except OVBackendError as error:
        return gr.update(), _note(str(error))
    return _paths(generated.files), f'<p class="openvino-parameters">{html.escape(generated.infotext)}</p>'


def _parameters(values: Sequence[Any], from_picture: bool) -> Parameters:
    prompt, negative, steps, guidance, seed, width, height, batch, strength = values
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
        )
    except (TypeError, ValueError, OverflowError):
        raise SettingsError("A number is missing: steps, guidance, seed, width, height and pictures need one each.") from None


def _paths(files: Sequence[Path]) -> list[str]:
    return [str(path) for path in files]


def _recent(generator: PictureGenerator) -> Iterator[list[str]]:
    """The last pictures, for a page that is loaded; once more when the generation that is running now is done."""
    files = generator.recent
    yield _paths(files)
    while generator.status.generating:
        time.sleep(0.2)
    if generator.recent != files:
        yield _paths(generator.recent)


def _restore(path: str | None) -> list[Any]:
    """The values of the page's fields and of the panel from a picture's parameters, and a message as HTML."""
    import gradio as gr
    from PIL import Image, UnidentifiedImageError

    unchanged_fields = [gr.update()] * len(vars(Parameters()))
    unchanged_panel = [gr.update()] * len(vars(Choices()))
    try:
        with Image.open(path or "") as picture:
            text = str(picture.info.get("parameters", ""))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return [*unchanged_fields, *unchanged_panel, _note("This file is no picture that can be read.")]
    if not text.strip():
        return [*unchanged_fields, *unchanged_panel, _note("This picture carries no parameters.")]
    parameters, choices = Parameters.from_text(text)
    fields = vars(parameters).copy()
    if parameters.strength is None:
        fields["strength"] = gr.update()
    panel = unchanged_panel
    if choices is not None:
        panel = list({**vars(choices), "device": as_listed(choices.device, device_choices()[0])}.values())
    return [*fields.values(), *panel, _note(" ".join(["Settings read from the picture.", *refused_choices(text)]))]


def _note(message: str) -> str:
    return f'<p class="openvino-note" role="alert">{html.escape(message)}</p>'
