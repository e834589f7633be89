"""The panel's routes in the WebUI, behind the WebUI's own authentication."""

from __future__ import annotations

from typing import Any

from modules import script_callbacks, shared

from ov_backend.hosts.webui.settings_page import ALLOWED_HOSTS, HOSTS_ADVICE
from ov_backend.hosts.webui.webui_host import controller
from ov_backend.ui.access import KnownHosts, has_password, names_in
from ov_backend.ui.routes import add_routes


def register() -> None:
    """Register the WebUI's callbacks; it forgets them whenever it loads its scripts."""
    script_callbacks.on_app_started(lambda _, app: _add_routes(app))


def _add_routes(app: Any) -> None:
    names = KnownHosts(_own_names, HOSTS_ADVICE, lambda request: _is_open(app, request))
    add_routes(app, controller, lambda request: _is_allowed(app, request), names)


def credentials(text: str | None) -> dict[str, str]:
    """Read the WebUI's ``--api-auth user:password,user:password`` into passwords by user."""
    pairs = (each.strip().partition(":") for each in (text or "").split(",") if each.strip())
    return {user: password for user, _, password in pairs}


def _is_allowed(app: Any, request: Any) -> bool:
    """Whether a request is logged in to the page or has the API's password; any is where neither is required."""
    api_credentials = _api_credentials()
    if has_password(request.headers, api_credentials):
        return True
    if getattr(app, "auth", None) is not None:
        tokens = [token for name, token in request.cookies.items() if name.startswith("access-token")]  # Gradio 4 adds an ID
        return any(token in getattr(app, "tokens", {}) for token in tokens)
    return not api_credentials


def _is_open(app: Any, request: Any) -> bool:
    """Whether a request proves no login; a page that everybody may load gives its token to everybody."""
    return getattr(app, "auth", None) is None and not has_password(request.headers, _api_credentials())


def _api_credentials() -> dict[str, str]:
    return credentials(getattr(shared.cmd_opts, "api_auth", None))


def _own_names() -> list[str]:
    """``--server-name``, the share link that is open now, and the names of the settings."""
    share_link = getattr(getattr(shared, "demo", None), "share_url", None)
    texts = (getattr(shared.cmd_opts, "server_name", None), share_link, getattr(shared.opts, ALLOWED_HOSTS, ""))
    return [name for text in texts for name in names_in(text)]
