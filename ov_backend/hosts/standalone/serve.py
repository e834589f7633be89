"""Serves the standalone page, and the panel's routes, for one pipeline (current Gradio)."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from ov_backend.core import posix
from ov_backend.core.package_files import ROOT
from ov_backend.core.settings import environment
from ov_backend.hosts.standalone.checkpoint_files import checkpoint_file
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.hosts.standalone.lora_tags import lora_folders
from ov_backend.hosts.standalone.page import page
from ov_backend.hosts.standalone.serve_options import Options, listen, login, url
from ov_backend.hosts.standalone.upscaler_files import upscaler_folder
from ov_backend.hosts.standalone.visitors import Visitors
from ov_backend.ui.access import KnownHosts, has_password
from ov_backend.ui.choices import Choices
from ov_backend.ui.routes import PREFIX, add_routes

log = logging.getLogger("ov_backend")

_FILES = "ov_backend-page-"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(options: Options, announce: Callable[[str], None]) -> int:
    """Serve until interrupted; calls ``announce`` with the address once the page can be opened.

    Raises:
        OVBackendError: the checkpoint, the address or an option cannot be used.
    """
    import uvicorn

    auth = login(options.auth)
    with listen(options.host, options.port) as listening:
        generator = load(options)
        app = application(generator, auth, (options.host, *options.allow_host))
        generator.prepare_likely(options.prepare)
        if options.host not in _LOOPBACK and auth is None:
            log.warning("Everybody who reaches this machine can use the page; --auth USER:PASSWORD asks for a login.")
        announce(url(options.host, listening.getsockname()[1]))
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    return 0


def load(options: Options) -> PictureGenerator:
    """A picture generator for the checkpoint.

    Raises:
        CheckpointError: the file is no checkpoint that can be read.
        SettingsError: none is given, and the project's own is not installed.
    """
    from ov_backend.checkpoint import load_pipeline

    path = checkpoint_file(options.checkpoint)
    choices = Choices(device=options.device or Choices.device, precision=options.precision)
    folders = lora_folders(path, options.lora_dir)
    found = options.out.resolve(), options.cache_dir, folders, choices, upscaler_folder(path, options.upscaler_dir)
    generator = PictureGenerator(load_pipeline(path), path.stem, *found)
    generator.checkpoints = {each.stem: each for each in options.checkpoints}
    return generator


def _private_files() -> tempfile.TemporaryDirectory[str]:
    """A folder that only this user can read, for Gradio's copies of what it serves, in the folder that the user has for these.

    Where files can be locked, those of killed processes are removed.
    """
    parent = Path(environment("GRADIO_TEMP_DIR") or tempfile.gettempdir())
    if parent.name.startswith(_FILES):  # that of another page of this process
        parent = parent.parent
    for mark in parent.glob(f"{_FILES}*/lock"):
        with contextlib.suppress(OSError):
            if posix.is_locked(mark) is False:
                shutil.rmtree(mark.parent)
    parent.mkdir(parents=True, exist_ok=True)
    folder = tempfile.TemporaryDirectory(prefix=_FILES, dir=parent, ignore_cleanup_errors=True)
    started = Path(folder.name, "started")
    posix.lock(os.open(started, os.O_CREAT | os.O_WRONLY, 0o600))  # until the process ends
    started.rename(started.with_name("lock"))  # only now, so that nobody finds it unlocked
    os.environ["GRADIO_TEMP_DIR"] = folder.name
    return folder


def application(generator: PictureGenerator, auth: tuple[str, str] | None = None, names: Sequence[str] = ()) -> Any:
    """The page and the panel's routes as one ASGI application; ``names`` are those of this server besides the usual ones."""
    import gradio as gr

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_closing(generator))
    is_allowed = (lambda request: has_password(request.headers, dict([auth]))) if auth else None
    known_hosts = KnownHosts(lambda: names, "start serve with --allow-host and this name", lambda request: auth is None)
    visitors = Visitors(generator)
    add_routes(app, generator.controller, is_allowed, known_hosts, lambda request: visitors.has_compared(_page_key(request)))
    if auth is None:
        app.add_middleware(HostGuard, known_hosts=known_hosts)
    style = (ROOT / "style.css").read_text(encoding="utf-8")
    return gr.mount_gradio_app(
        app,
        page(visitors),
        path="/",
        auth=auth,
        theme=_theme(),
        css=style,
        # once more as it is: Gradio gives its "css" precedence over its own, but leaves out rules for containers
        head=f"<style>{style}</style>" + "".join(f"<script>{path.read_text(encoding='utf-8')}</script>" for path in _scripts()),
        footer_links=[],
        ssr_mode=False,
    )


def _page_key(request: Any) -> str:
    """The key of the page that asks; see :class:`Visitors`."""
    return str(request.headers.get("x-openvino-page", ""))


def _closing(generator: PictureGenerator) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
    """The life of the application, at whose end the generator is closed; after that, SIGTERM ends the process at once."""
    given, files = environment("GRADIO_TEMP_DIR"), _private_files()

    @contextlib.asynccontextmanager
    async def life(app: Any) -> AsyncIterator[None]:
        yield
        generator.close()
        files.cleanup()
        os.environ.pop("GRADIO_TEMP_DIR", None)
        os.environ.update({} if given is None else {"GRADIO_TEMP_DIR": given})

    return life


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
        button_cancel_background_fill="#b91c1c",
        button_cancel_background_fill_dark="#b91c1c",
        button_cancel_text_color="white",
        button_cancel_text_color_dark="white",
    )


def _scripts() -> list[Path]:
    """The panel's scripts, and the page's own in a folder that the WebUI does not load."""
    return [*sorted((ROOT / "javascript").glob("*.js")), *sorted((ROOT / "javascript" / "standalone").glob("*.js"))]


class HostGuard:
    """ASGI middleware; the panel's routes check for themselves, because they answer in JSON."""

    def __init__(self, app: Any, known_hosts: KnownHosts) -> None:
        self._app, self._known_hosts = app, known_hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with 400 or 403 and a sentence, or pass the request on."""
        if scope["type"] not in ("http", "websocket") or scope["path"].startswith(PREFIX):
            return await self._app(scope, receive, send)
        code, sentence = self._known_hosts.check(Headers(scope=scope).getlist("host"))
        if not sentence:
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008, "reason": sentence[:120]})
        return await PlainTextResponse(sentence, code)(scope, receive, send)
