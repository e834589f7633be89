"""What the script calls, and the callbacks that the WebUI calls in turn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from modules import processing, script_callbacks, shared

from ov_backend.hosts.webui import routes, settings_page
from ov_backend.hosts.webui.always_on import always_on
from ov_backend.hosts.webui.ending import ending
from ov_backend.hosts.webui.generation import Generation
from ov_backend.hosts.webui.other_jobs import other_jobs
from ov_backend.hosts.webui.session import session
from ov_backend.hosts.webui.settings_page import defaults
from ov_backend.hosts.webui.webui_host import controller, webui_host
from ov_backend.ui.choices import Choices

#: The extension's folder.
ROOT = Path(__file__).resolve().parents[3]

__all__ = ["before_batch", "before_process", "before_sampling", "defaults", "register", "report", "run"]


def register() -> None:
    """Register the WebUI's callbacks; it forgets them whenever it loads its scripts."""
    script_callbacks.on_ui_settings(settings_page.add_settings)
    script_callbacks.on_before_ui(settings_page.add_axes)
    script_callbacks.on_before_ui(other_jobs.begin)
    script_callbacks.on_cfg_after_cfg(webui_host.after_step)  # the only one after a step that all hosts call
    script_callbacks.on_model_loaded(_model_loaded)
    script_callbacks.on_script_unloaded(unload)
    routes.register()
    ending.handle_signals()


def report(message: str) -> None:
    """Show a message in the panel."""
    session.status.add_message(message)


def unload() -> None:
    """Restore everything: the extension is disabled, or the WebUI's page is reloaded, which compiles nothing again."""
    ending.restore_signals()
    always_on.end()
    other_jobs.end()
    if Generation.current is not None:
        Generation.current.close()
    if _stays_enabled():
        session.keep_compiled()
    else:
        session.clear()


def _stays_enabled() -> bool:
    """Whether the WebUI will load this extension again, as far as its settings say."""
    known = getattr(sys.modules.get("modules.extensions"), "extensions", ())
    names = {each.name for each in known if Path(each.path).resolve() == ROOT}
    disabled = {*getattr(shared.opts, "disabled_extensions", ())}
    return bool(names - disabled) and getattr(shared.opts, "disable_all_extensions", "none") == "none"


def run(script: Any, p: Any, args: tuple[Any, ...]) -> Any:
    """Generate ``p`` with its networks in OpenVINO; returns the WebUI's own result."""
    base, of_settings = settings_page.read_defaults()
    choices, warnings = Choices.from_args(own_arguments(script, p, args), base)
    with Generation(p, choices, [*of_settings, *warnings]) as generation:
        p.extra_generation_params["Script"] = script.title()
        return generation.annotate(processing.process_images(p))


def own_arguments(script: Any, p: Any, args: tuple[Any, ...]) -> list[Any]:
    """The arguments that a caller meant for this script.

    The API assigns a caller's arguments to a slice of the list of all scripts' arguments. A wrong number of them shifts
    the arguments behind the slice, so ``args`` would hold another script's arguments or lack some of ours.
    """
    all_args = getattr(p, "script_args", None)
    inputs = getattr(getattr(p, "scripts", None), "inputs", None)
    if not isinstance(all_args, (list, tuple)) or not inputs or script.args_from is None:
        return list(args)
    count = (script.args_to - script.args_from) + len(all_args) - len(inputs)
    return list(all_args[script.args_from : script.args_from + max(0, count)])


def before_process(p: Any) -> None:
    """A generation begins; the first call in it."""
    always_on.begin(p)


def before_batch() -> None:
    """A batch of a generation begins; its LoRAs are set, and nothing is encoded yet."""
    if Generation.current is not None:
        Generation.current.begin_batch()


def before_sampling() -> None:
    """Sampling begins; all extensions have patched what they need."""
    webui_host.sampling_begins()
    if Generation.current is not None:
        Generation.current.check_instances()


def _model_loaded(_: Any) -> None:
    session.status.forget_job()  # nothing is ready for its weights
    if not session.status.generating:  # else the generation prepares what it calls, and its result is the news
        controller.readiness.model_loaded()
