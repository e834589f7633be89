"""The panel's HTTP routes, the same in every host; docs/api.md describes them.

No route takes a path. A request that changes something is refused if it comes from a page of another origin, and where nobody
is asked for a login every request is refused that was sent to an unknown name (``access.py``). Rates and bodies are
bounded: while something runs, the status route answers at a bounded rate however many clients poll it, so that polling does
not slow the steps down.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from ov_backend.core.errors import OVBackendError, SettingsError
from ov_backend.ui.access import KnownHosts, has_page_token, same_origin
from ov_backend.ui.controller import Controller, parse_asked, parse_choices, parse_precompile
from ov_backend.ui.jobs import Unavailable
from ov_backend.ui.snapshot import VERSION

log = logging.getLogger(__name__)

PREFIX = "/openvino"
#: Answers of the status route per second while something runs, and the longest that one client waits for its answer.
RATE, LONGEST_WAIT_S = 10.0, 15.0
#: A snapshot is sent to everybody who asks within this time.
FRESH_S = 0.1
_MAX_BODY = 16384
#: The longest that a client may take to send its body.
_BODY_TIMEOUT_S = 10.0
#: All other routes together: how many requests at once, and how many per second from then on.
BURST, REFILL = 60, 20.0
#: How many clients may wait for their turn of the status.
MAX_WAITING = 500

IsAllowed = Callable[[Request], bool]


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message


class _Bucket:
    """Admits :data:`BURST` requests at once and :data:`REFILL` per second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._left, self._filled_at = clock, float(BURST), clock()

    def take(self) -> bool:
        """Take one request's share; false where none is left."""
        now = self._clock()
        self._left = min(float(BURST), self._left + (now - self._filled_at) * REFILL)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _ThrottledStatus:
    """The status as JSON: rendered at most once in :data:`FRESH_S`, sent at most :data:`RATE` times a second."""

    def __init__(self, controller: Controller, clock: Callable[[], float] = time.monotonic) -> None:
        self._controller, self._clock = controller, clock
        self._json, self._rendered_at = b"", float("-inf")
        self._next_turn = float("-inf")
        self.waiting = 0

    def seconds_to_wait(self) -> float:
        """Take the next turn; returns the seconds until then."""
        now = self._clock()
        if not self._controller.status.busy:
            self._next_turn = now
            return 0.0
        turn = min(max(now, self._next_turn), now + LONGEST_WAIT_S)
        self._next_turn = turn + 1 / RATE
        return turn - now

    def as_json(self) -> bytes:
        """The newest snapshot."""
        if self._clock() - self._rendered_at > FRESH_S:
            self._json = json.dumps(self._controller.status.snapshot()).encode()
            self._rendered_at = self._clock()
        return self._json


def add_routes(
    app: FastAPI,
    controller: Controller,
    is_allowed: IsAllowed | None = None,
    known_hosts: KnownHosts | None = None,
    may_see: IsAllowed = lambda request: True,
) -> None:
    """Add the routes to an application.

    Args:
        app: a FastAPI application, running or not.
        controller: what the routes show and do.
        is_allowed: the host's own authentication, for a request without the token of a page; None admits all.
        known_hosts: under which names the routes may be asked; None checks the names only where nobody is asked for a login.
        may_see: whether a request is given the pictures of the last comparison.
    """
    throttled, bucket = _ThrottledStatus(controller), _Bucket()
    names = known_hosts or KnownHosts(is_needed=lambda request: is_allowed is None)

    def admit(request: Request) -> None:
        code, refusal = names.check(request.headers.getlist("host"), names.is_needed(request))
        if refusal:
            raise _Refused(code, refusal)
        if request.method != "GET" and not same_origin(request.headers):
            raise _Refused(403, "This request comes from a page of another origin; use the panel's own page.")
        if is_allowed is not None and not has_page_token(request.headers) and not is_allowed(request):
            raise _Refused(401, "Log in first, or reload the page if the server was restarted.")
        if not request.url.path.endswith("/status") and not bucket.take():
            raise _Refused(429, f"More than {REFILL:.0f} requests came in a second; wait a moment and try again.")

    async def status(request: Request) -> Response:
        if throttled.waiting >= MAX_WAITING:
            raise _Refused(429, f"{MAX_WAITING} pages wait for the status already; close some of them.")
        throttled.waiting += 1
        try:
            await asyncio.sleep(throttled.seconds_to_wait())
        finally:
            throttled.waiting -= 1
        return Response(throttled.as_json(), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def devices(request: Request) -> Response:
        return _json({"version": VERSION, "devices": await run_in_threadpool(controller.devices)})

    async def cache(request: Request) -> Response:
        return _json({"version": VERSION, **await run_in_threadpool(controller.cache)})

    async def clear(request: Request) -> Response:
        return _json({"version": VERSION, "removed": await run_in_threadpool(controller.clear_cache)})

    async def precompile(request: Request) -> Response:
        sizes, batch, choices = parse_precompile(await _body(request, '{"sizes": [[512, 768]]}'))
        return _json({"version": VERSION, "job": controller.start_precompile(sizes, batch, choices).as_dict()}, 202)

    async def ready(request: Request) -> Response:
        controller.readiness.size_changed(parse_asked(await _body(request, '{"size": [512, 768], "batch": 1}')))
        return _json({"version": VERSION}, 202)

    async def compare(request: Request) -> Response:
        choices = parse_choices(await _body(request, '{"choices": {}}'))
        return _json({"version": VERSION, "job": controller.start_compare(choices).as_dict()}, 202)

    async def compare_int8(request: Request) -> Response:
        choices = parse_choices(await _body(request, '{"choices": {}}'))
        return _json({"version": VERSION, "job": controller.start_compare(choices, int8=True).as_dict()}, 202)

    async def picture(request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        if name not in controller.pictures or not may_see(request):
            raise _Refused(404, 'There are no such pictures; press "Compare with PyTorch" or "Compare int8" after a generation.')
        return Response(controller.pictures[name], media_type="image/png", headers={"Cache-Control": "no-store"})

    async def stop(request: Request) -> Response:
        controller.stop()
        return _json({"version": VERSION}, 202)

    endpoints: list[tuple[str, str, Callable[[Request], Any]]] = [
        ("GET", "/status", status),
        ("GET", "/devices", devices),
        ("GET", "/cache", cache),
        ("DELETE", "/cache", clear),
        ("POST", "/precompile", precompile),
        ("POST", "/ready", ready),
        ("POST", "/compare", compare),
        ("POST", "/compare-int8", compare_int8),
        *(("GET", f"/compare/{name}", picture) for name in ("pytorch", "openvino", "own", "int8")),
        ("POST", "/interrupt", stop),
    ]
    for method, path, endpoint in endpoints:
        app.router.add_route(PREFIX + path, _guarded(endpoint, admit), methods=[method], include_in_schema=False)


def _guarded(endpoint: Callable[[Request], Any], admit: Callable[[Request], None]) -> Callable[[Request], Any]:
    """An endpoint that admits a request first and answers errors with their code and message."""

    async def answer(request: Request) -> Response:
        try:
            admit(request)
            response: Response = await endpoint(request)
            return response
        except _Refused as refused:
            return _json({"error": refused.message}, refused.code)
        except SettingsError as error:
            return _json({"error": str(error)}, 422)
        except Unavailable as error:
            return _json({"error": str(error)}, 409)
        except OVBackendError as error:
            return _json({"error": str(error)}, 500)
        except ClientDisconnect:
            log.debug("The client of %s %s went away.", request.method, request.url.path)
            return _json({"error": "The client went away before its request was read."}, 400)  # nobody gets it
        except Exception as error:  # the last handler: the panel shows a sentence, the log has the rest
            log.exception("%s %s failed.", request.method, request.url.path)
            return _json({"error": f"The server failed ({type(error).__name__}); its log says more."}, 500)

    return answer


async def _body(request: Request, example: str) -> Any:
    """A request's small JSON body, as the example; its content type is one that an HTML form of another page cannot send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _Refused(415, "The request's body must be declared as Content-Type: application/json.")
    try:
        data = await asyncio.wait_for(_bytes(request), _BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise _Refused(408, f"The request's body took longer than {_BODY_TIMEOUT_S:.0f} s; send it again.") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise SettingsError(f"The request's body is not JSON; send an object such as {example}.") from None


async def _bytes(request: Request) -> bytes:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_BODY:
            raise _Refused(413, f"The request's body is longer than {_MAX_BODY} bytes; send a shorter one.")
    return data


def _json(value: dict[str, Any], code: int = 200) -> Response:
    return Response(json.dumps(value), code, media_type="application/json", headers={"Cache-Control": "no-store"})
