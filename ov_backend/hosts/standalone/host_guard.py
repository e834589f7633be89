"""Refuses every request to the standalone page that was sent to an unknown name; see :mod:`ov_backend.ui.access`."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from ov_backend.ui.access import KnownHosts
from ov_backend.ui.routes import PREFIX


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
