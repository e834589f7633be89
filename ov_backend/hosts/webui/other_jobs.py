"""What runs networks outside of a generation: Extras, scripts that upscale, img2img's interrogation, a preprocessor's run.

No script can be selected there: they are accelerated where every generation is, with the settings' choices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from modules import scripts, shared

from ov_backend.core.errors import OVBackendError
from ov_backend.core.patching import Patch, is_patched
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.calls_patch import CallsPatch
from ov_backend.hosts.webui.generation import Generation
from ov_backend.hosts.webui.other_networks import OTHER_NETWORKS, other_networks
from ov_backend.hosts.webui.session import session
from ov_backend.hosts.webui.settings_page import ALWAYS_ON, defaults
from ov_backend.ui.choices import INFOTEXT_FIELD
from ov_backend.ui.infotext import choices_field


class _Job(NamedTuple):
    """A function that runs networks: where it is, and what the status calls it."""

    module: str
    class_name: str
    function: str
    what: str

    @property
    def owner(self) -> Any:
        """The class or the module, or None where it is not loaded."""
        module = sys.modules.get(self.module)
        return getattr(module, self.class_name, None) if self.class_name else module


_JOBS = (
    _Job("modules.postprocessing", "", "run_postprocessing", "Extras"),
    _Job("modules.upscaler", "Upscaler", "upscale", "Upscaling"),  # in scripts such as SD upscale
    _Job("modules.interrogate", "InterrogateModels", "interrogate", "Interrogating"),
    _Job("modules.deepbooru", "DeepDanbooru", "tag", "Interrogating"),
    _Job("scripts.supported_preprocessor", "Preprocessor", "cached_call", "Preprocessing"),
)


class OtherJobs:
    """The patches of these functions, from the start of the WebUI's page to its end."""

    def __init__(self) -> None:
        self._patches: list[Patch] = []

    def begin(self) -> None:
        """Patch those that are loaded."""
        for job in _JOBS:
            if hasattr(job.owner, job.function) and not is_patched(getattr(job.owner, job.function)):
                self._patches.append(Patch(job.owner, job.function, _accelerated(job)))

    def end(self) -> None:
        """Restore them."""
        for patch in self._patches:
            patch.undo()
        self._patches.clear()


def _accelerated(job: _Job) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        if job.function == "upscale":
            original = other_networks.upscaling.named(original)

        def run(*args: Any, **kwargs: Any) -> Any:
            enabled = getattr(shared.opts, ALWAYS_ON, False) and getattr(shared.opts, OTHER_NETWORKS, True)
            if not enabled or Generation.current is not None or session.status.generating:
                return original(*args, **kwargs)
            return _run(job.what, lambda: original(*args, **kwargs))

        return run

    return make


def _run(what: str, job: Callable[[], Any]) -> Any:
    try:
        session.configure(defaults())
    except OVBackendError as error:
        session.status.add_message(f"OpenVINO is not used: {error}")
        return job()
    patches: list[Patch | CallsPatch] = []
    with session.status.generation(what, interrupted=lambda: bool(shared.state.interrupted)):
        try:
            patches.append(patch_calls(other_networks.answer))
            other_networks.begin()
            runner = getattr(scripts, "scripts_postproc", None)
            if runner is not None:
                patches.append(Patch(runner, "run", _noted))
            return job()
        finally:
            other_networks.end()  # before the patch of calls is free for the next
            for patch in reversed(patches):
                patch.undo()


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note in a picture of Extras what ran in OpenVINO."""

    def run(picture: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(picture, *args, **kwargs)
        if ran := other_networks.ran_where():
            picture.info[INFOTEXT_FIELD] = choices_field(defaults(), ", ".join(ran))
        return result

    return run


#: Process-wide instance.
other_jobs = OtherJobs()
