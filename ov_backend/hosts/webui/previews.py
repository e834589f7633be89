"""Live previews of a generation: they never wait for a compile.

The WebUI makes them in the thread of the page's request, and with ``--medvram`` or ``--lowvram`` in the generation's own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ov_backend.core.patching import Patch
from ov_backend.hosts.webui.other_networks import other_networks

#: Whether this thread makes a preview in the middle of its generation.
_previewing: ContextVar[bool] = ContextVar("previewing", default=False)


class Previews:
    """Knows which calls of networks are a preview's, from its making in the generation's thread to :meth:`end`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        common = sys.modules.get("modules.sd_samplers_common")
        self._patch = Patch(common, "sample_to_image", _noted) if hasattr(common, "sample_to_image") else None

    def calls(self) -> bool:
        """Whether a preview makes the call that this code answers."""
        return _previewing.get() or threading.get_ident() != self._thread

    def end(self) -> None:
        """Restore the function that makes them."""
        if self._patch is not None:
            self._patch.undo()
            self._patch = None


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def sample_to_image(*args: Any, **kwargs: Any) -> Any:
        token = _previewing.set(True)
        try:
            with other_networks.inside():
                return original(*args, **kwargs)
        finally:
            _previewing.reset(token)

    return sample_to_image
