"""The panel's HTTP routes, the same in every host; docs/panel.md describes them.

No route takes a path. Whatever changes something is refused to a page of another origin. The status route answers at a
bounded rate while something runs, however many ask: a poller waits its turn, and the steps keep their time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from ov_backend.errors import OVBackendError, SettingsError
from ov_backend.ui.auth import has_page_token, same_origin
from ov_backend.ui.controller import Controller, Unavailable, parse_choices, parse_precompile
from ov_backend.ui.status import VERSION

PREFIX = "/openvino"
#: Answers of the status route per second while something runs, and the longest that one poller waits for its turn.
RATE, LONGEST_WAIT_S = 10.0, 15.0
#: A snapshot serves everybody who asks within this time.
FRESH_S = 0.1
_MAX_BODY = 16384

Allowed = Callable[[Request], bool]


class _Refused(Exception):
    def __init__(self, code: int, sentence: str) -> None:
        self.code, self.sentence = code, sentence


class _Board:
    """The status as bytes, made at most once in :data:`FRESH_S`, handed out at most :data:`RATE` times a second."""

    def __init__(self, controller: Controller, clock: Callable[[], float] = time.monotonic) -> None:
        self._controller, self._clock = controller, clock
        self._made, self._bytes = float("-inf"), b""
        self._next = float("-inf")

    def wait(self) -> float:
        """Seconds until the one who asks now has its turn."""
        now = self._clock()
        if not self._controller.status.busy:
            self._next = now
            return 0.0
        turn = min(max(now, self._next), now + LONGEST_WAIT_S)
        self._next = turn + 1 / RATE
        return turn - now

    def bytes(self) -> bytes:
        """The newest snapshot."""
        if self._clock() - self._made > FRESH_S:
            self._bytes = json.dumps(self._controller.status.snapshot()).encode()
            self._made = self._clock()
        return self._bytes


def add_routes(app: FastAPI, controller: Controller, allowed: Allowed | None = None) -> None:
    """Add the routes to an application.

    Args:
        app: a FastAPI application, running or not.
        controller: what the routes show and do.
        allowed: whether the host's own authentication admits a request that carries no token of a page; None admits all.
    """
    board = _Board(controller)

    def admit(request: Request) -> None:
        if request.method != "GET" and not same_origin(request.headers):
            raise _Refused(403, "This request comes from a page of another origin; use the panel's own page.")
        if allowed is not None and not has_page_token(request.headers) and not allowed(request):
            raise _Refused(401, "Log in first, or reload the page if the server was restarted.")

    async def status(request: Request) -> Response:
        await asyncio.sleep(board.wait())
        return Response(board.bytes(), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def devices(request: Request) -> Response:
        found = await run_in_threadpool(controller.devices)
        return _json({"version": VERSION, "devices": found})

    async def cache(request: Request) -> Response:
        return _json({"version": VERSION, **await run_in_threadpool(controller.cache)})

    async def clear(request: Request) -> Response:
        return _json({"version": VERSION, "removed": await run_in_threadpool(controller.clear_cache)})

    async def precompile(request: Request) -> Response:
        sizes, batch, choices = parse_precompile(await _body(request))
        return _json({"version": VERSION, "job": controller.start_precompile(sizes, batch, choices).as_dict()}, 202)

    async def compare(request: Request) -> Response:
        choices = parse_choices(await _body(request))
        return _json({"version": VERSION, "job": controller.start_compare(choices).as_dict()}, 202)

    async def stop(request: Request) -> Response:
        controller.stop()
        return _json({"version": VERSION}, 202)

    table: list[tuple[str, str, Callable[[Request], Any]]] = [
        ("GET", "/status", status),
        ("GET", "/devices", devices),
        ("GET", "/cache", cache),
        ("DELETE", "/cache", clear),
        ("POST", "/precompile", precompile),
        ("POST", "/compare", compare),
        ("POST", "/interrupt", stop),
    ]
    for method, path, endpoint in table:
        app.router.add_route(PREFIX + path, _answer(endpoint, admit), methods=[method], include_in_schema=False)


def _answer(endpoint: Callable[[Request], Any], admit: Callable[[Request], None]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            admit(request)
            response: Response = await endpoint(request)
            return response
        except _Refused as refused:
            return _json({"error": refused.sentence}, refused.code)
        except SettingsError as error:
            return _json({"error": str(error)}, 422)
        except Unavailable as error:
            return _json({"error": str(error)}, 409)
        except OVBackendError as error:
            return _json({"error": str(error)}, 500)

    return answer


async def _body(request: Request) -> Any:
    """A small JSON body, and nothing that a plain form of another page could send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _Refused(415, "The request's body must be application/json.")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_BODY:
            raise _Refused(413, f"The request's body is longer than {_MAX_BODY} bytes.")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise SettingsError("The request's body is not JSON.") from None


def _json(value: dict[str, Any], code: int = 200) -> Response:
    return Response(json.dumps(value), code, media_type="application/json", headers={"Cache-Control": "no-store"})
