"""An upscaler that is loaded before the WebUI asks for it: in a hires fix it is compiled while the first pass samples.

The WebUI loads an upscaler anew for each picture. What it asks for is remembered under the upscaler's name; in the next such
picture its own function is called at the beginning, and what that returns is handed out when the WebUI asks.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from modules import shared

from ov_backend.core.errors import pass_on_signals
from ov_backend.core.patching import Patch

log = logging.getLogger("ov_backend")

#: What the WebUI has asked for: "path", "changed" (when the file was) and "keywords".
Asked = dict[str, Any]


class EarlyLoad:
    """One upscaler at a time, between :meth:`begin` and :meth:`end`."""

    def __init__(self) -> None:
        self._patch: Patch | None = None
        self._load: Callable[..., Any] | None = None
        self._early: tuple[Asked, Any] | None = None
        self._last: tuple[weakref.ref[torch.nn.Module], Asked] | None = None

    def begin(self) -> None:
        """Patch the function by which the WebUI loads upscalers."""
        loader = sys.modules.get("modules.modelloader")
        if hasattr(loader, "load_spandrel_model"):
            self._patch = Patch(loader, "load_spandrel_model", self._noted)

    def end(self) -> None:
        """Restore it, and let go of what nobody has asked for."""
        if self._patch is not None:
            self._patch.undo()
        self._patch = self._load = self._early = self._last = None

    def asked_for(self, module: torch.nn.Module) -> Asked | None:
        """What the WebUI has asked for to get this module, if that was its last load."""
        return self._last[1] if self._last is not None and self._last[0]() is module else None

    def load(self, name: str, asked: Asked) -> torch.nn.Module | None:
        """Load what was asked for once, if it is still the file of the upscaler of that name; nothing is downloaded."""
        listed = (each for each in getattr(shared, "sd_upscalers", ()) if each.name == name)
        paths = {str(path) for each in listed for path in (each.data_path, getattr(each, "local_data_path", None))}
        if self._load is None or asked["path"] not in paths or _asked(asked["path"], asked["keywords"]) != asked:
            return None
        try:
            descriptor = self._load(asked["path"], **asked["keywords"])
        except Exception as error:  # the WebUI's own load will say so
            pass_on_signals(error)
            log.debug("%s was not loaded early", name, exc_info=True)
            return None
        self._early = asked, descriptor
        return descriptor.model if isinstance(descriptor.model, torch.nn.Module) else None

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._load = original

        def load(path: Any, **keywords: Any) -> Any:
            asked, (known, descriptor) = _asked(path, keywords), self._early or (None, None)
            self._early = None
            if asked is None or known != asked:
                descriptor = original(path, **keywords)
            model = getattr(descriptor, "model", None)
            self._last = (weakref.ref(model), asked) if asked is not None and isinstance(model, torch.nn.Module) else None
            return descriptor

        return load


def _asked(path: Any, keywords: dict[str, Any]) -> Asked | None:
    """A request in words that JSON has; None where there is no such file, or something else is asked for."""
    words = {name: str(value) if isinstance(value, torch.device) else value for name, value in keywords.items()}
    if not all(value is None or isinstance(value, (bool, str)) for value in words.values()):
        return None
    with contextlib.suppress(OSError):
        return {"path": str(path), "changed": Path(path).stat().st_mtime, "keywords": words}
    return None
