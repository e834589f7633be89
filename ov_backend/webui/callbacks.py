"""What the script calls: one generation through the selected script, or any generation by the always-on companion."""

from __future__ import annotations

from typing import Any

from modules import processing, script_callbacks

from ov_backend.ui.choices import Choices
from ov_backend.webui import routes, settings_page
from ov_backend.webui.always_on import always_on
from ov_backend.webui.generation import Generation
from ov_backend.webui.session import session
from ov_backend.webui.settings_page import defaults

__all__ = ["before_process", "before_sampling", "defaults", "register", "run"]

TITLE = "Accelerate with OpenVINO"


def register() -> None:
    """Ask the WebUI for its calls; it forgets them whenever it loads its scripts."""
    script_callbacks.on_ui_settings(settings_page.add_settings)
    script_callbacks.on_before_ui(settings_page.add_axes)
    script_callbacks.on_cfg_denoised(_after_step)
    script_callbacks.on_script_unloaded(unload)
    routes.register()


def unload() -> None:
    """The extension is disabled or the page reloaded: nothing of it stays behind."""
    always_on.end()
    if Generation.current is not None:
        Generation.current.close()
    session.clear()


def run(script: Any, p: Any, args: tuple[Any, ...]) -> Any:
    """Generate what ``p`` describes with its networks in OpenVINO; the result is the WebUI's own."""
    choices, warnings = Choices.from_args(own_arguments(script, p, args), defaults())
    with Generation(p, choices, warnings) as generation:
        p.extra_generation_params["Script"] = TITLE
        return generation.finish(processing.process_images(p))


def own_arguments(script: Any, p: Any, args: tuple[Any, ...]) -> list[Any]:
    """The arguments that were meant for this script.

    The API assigns what it was given into a slice of all scripts' arguments: a wrong number of them moves the others'
    arguments into our place, or ours out of it.
    """
    every = getattr(p, "script_args", None)
    inputs = getattr(getattr(p, "scripts", None), "inputs", None)
    if not isinstance(every, (list, tuple)) or not inputs or script.args_from is None:
        return list(args)
    given = (script.args_to - script.args_from) + len(every) - len(inputs)
    return list(every[script.args_from : script.args_from + max(0, given)])


def before_process(p: Any) -> None:
    """The first call of any generation."""
    always_on.begin(p)


def before_sampling() -> None:
    """All extensions have put in place what they want; the next thing is sampling."""
    if Generation.current is not None:
        Generation.current.denoised = 0
        Generation.current.look()


def _after_step(params: Any) -> None:
    """A step is computed; the WebUI counts it only after the next one, and stays at 0 for the first two."""
    if Generation.current is not None:
        Generation.current.denoised += 1
        done = params.sampling_step + (1 if Generation.current.denoised == 1 else 2)
        session.status.step(min(done, params.total_sampling_steps), params.total_sampling_steps)
