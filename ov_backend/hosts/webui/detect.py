"""The WebUIs that are known here, each in a folder of its own, and the one that this process is."""

from __future__ import annotations

import importlib
import importlib.util

from ov_backend.core.errors import OVBackendError
from ov_backend.hosts.webui.protocol import WebUI

__all__ = ["WebUI", "host"]

#: By the folder here, a Python module that only this WebUI has among those that stand below it in this table.
_KNOWN = {
    "forge": "modules_forge.main_entry",
    "reforge": "ldm_patched.modules.patcher_extension",
    "a1111": "modules.sd_hijack_optimizations",
}

#: What Forge, reForge and what came of them have. One that is neither, such as Forge of 2024, calls its networks elsewhere.
_OF_FORGES = "modules_forge"


def find_host() -> WebUI:
    """The WebUI that this process is, by what can be imported.

    Raises:
        OVBackendError: it is none of those that are known here.
    """
    for folder, module in _KNOWN.items():
        if _is_there(module) and not (folder == "a1111" and _is_there(_OF_FORGES)):
            found: WebUI = importlib.import_module(f"ov_backend.hosts.webui.{folder}").HOST
            return found
    raise OVBackendError(
        f"this WebUI is none that this extension knows, or an old one: none of {', '.join(_KNOWN.values())} can be imported here."
        " Install the extension into AUTOMATIC1111's WebUI, Forge or reForge"
    )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it would be in
        return False


#: Process-wide instance.
host = find_host()
