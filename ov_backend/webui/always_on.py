"""Every generation, without the script being selected: Settings > OpenVINO > Accelerate every generation, and X/Y/Z axes.

The WebUI tells its scripts when a generation begins, but not when one ends by an exception. So the function that makes
the pictures is replaced for this one call, and its end is the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from modules import processing, shared

from ov_backend.patching import Patch
from ov_backend.ui.choices import Choices
from ov_backend.webui.generation import Generation
from ov_backend.webui.settings_page import ALWAYS_ON, AXIS, PYTORCH, defaults


class AlwaysOn:
    """Puts one generation at a time into OpenVINO."""

    def __init__(self) -> None:
        self._swap: Patch | None = None

    def begin(self, p: Any) -> None:
        """A generation begins; its settings are not in place yet."""
        self.end()
        wanted = getattr(shared.opts, ALWAYS_ON, False) or ALWAYS_ON in p.override_settings or hasattr(p, AXIS)
        if wanted and Generation.current is None:
            self._swap = Patch(processing, "process_images_inner", lambda original: lambda q: self._run(original, p, q))

    def end(self) -> None:
        """Take the function out; it may still be there if a generation failed before it began."""
        if self._swap is not None:
            self._swap.undo()
            self._swap = None

    def _run(self, original: Callable[[Any], Any], p: Any, q: Any) -> Any:
        self.end()
        axis = getattr(p, AXIS, {})
        wanted = bool(axis) or getattr(shared.opts, ALWAYS_ON, False)
        if q is not p or not wanted or axis.get("device") == PYTORCH:
            return original(q)
        choices, warnings = Choices.from_args(list(vars(dataclasses.replace(defaults(), **axis)).values()), defaults())
        with Generation(p, choices, warnings) as generation:
            return generation.finish(original(q))


#: The one of this process.
always_on = AlwaysOn()
