"""Accelerates generations without the script being selected: Settings > OpenVINO > Accelerate every generation, X/Y/Z axes.

The WebUI calls its scripts when a generation begins, but not when one ends by an exception. So the function that
generates the pictures is patched for one call, and its return is the end of the generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from modules import processing, shared

from ov_backend.core.patching import Patch
from ov_backend.hosts.webui.generation import Generation
from ov_backend.hosts.webui.settings_page import ALWAYS_ON, AXIS, PYTORCH, read_defaults
from ov_backend.ui.choices import Choices


class AlwaysOn:
    """Accelerates one generation at a time."""

    def __init__(self) -> None:
        self._patch: Patch | None = None

    def begin(self, p: Any) -> None:
        """A generation begins; the settings that it overrides are not in place yet."""
        self.end()
        enabled = getattr(shared.opts, ALWAYS_ON, False) or ALWAYS_ON in p.override_settings or hasattr(p, AXIS)
        if enabled and Generation.current is None:
            self._patch = Patch(processing, "process_images_inner", lambda original: lambda q: self._run(original, p, q))

    def end(self) -> None:
        """Restore the WebUI's function; it is still patched if a generation failed before it reached the function."""
        if self._patch is not None:
            self._patch.undo()
            self._patch = None

    def _run(self, original: Callable[[Any], Any], p: Any, q: Any) -> Any:
        """Generate ``q``, in OpenVINO if it is the generation ``p`` that this was patched for."""
        self.end()
        axis = getattr(p, AXIS, {})
        enabled = bool(axis) or getattr(shared.opts, ALWAYS_ON, False)
        if q is not p or not enabled or axis.get("device") == PYTORCH:
            return original(q)
        base, of_settings = read_defaults()
        choices, warnings = Choices.from_args(list(vars(dataclasses.replace(base, **axis)).values()), base)
        with Generation(p, choices, [*of_settings, *warnings]) as generation:
            return generation.annotate(original(q))


#: Process-wide instance.
always_on = AlwaysOn()
