"""Who may use the panel's routes: under which names it may be asked, and what a request's headers prove.

A page of another site can give its own name the address of this machine (DNS rebinding). A browser then takes this server for a
part of that site, and lets its page use the routes. The browser's ``Host`` header still has the other site's name. So where
nobody is asked for a login, only names that lead here for sure are accepted: addresses, which cannot be rebound, and names that
this machine or its owner chose.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_PORT = re.compile(r":\d{1,5}")
_LONGEST = 255


class MalformedHost(ValueError):
    """A Host header holds no host."""


def host_name(header: str) -> str:
    """The name or address in a ``Host`` header, in lower case, without port, brackets and final dot.

    Raises:
        MalformedHost: it holds neither.
    """
    text = header.strip().lower()
    if text.startswith("["):
        address, bracket, port = text[1:].partition("]")
        if not bracket or not is_address(address) or ":" not in address:
            raise MalformedHost
    else:
        address, _, _ = text.partition(":")
        port = text[len(address) :]
        if len(address) > _LONGEST or not _NAME.fullmatch(address):
            raise MalformedHost
    if port and not _PORT.fullmatch(port):
        raise MalformedHost
    return address.removesuffix(".")


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def machine_names() -> set[str]:
    """The names that this machine has for itself, and the one that other machines of its network know it by."""
    name = socket.gethostname().lower().removesuffix(".")
    first = name.partition(".")[0]
    return {name, first, f"{first}.local"} - {"", ".local"}


def is_known(name: str, allowed: Iterable[str]) -> bool:
    """Whether a name leads to this machine for sure.

    Args:
        name: see :func:`host_name`.
        allowed: names, or addresses of pages with such a name; ``*.example.org`` is every name below example.org.
    """
    if is_address(name) or name == "localhost" or name.endswith(".localhost") or name in machine_names():
        return True
    return any(_matches(name, each.strip().lower()) for each in allowed)


def _matches(name: str, allowed: str) -> bool:
    if allowed.startswith("*."):
        return name.endswith(allowed[1:]) and len(allowed) > 2
    try:
        return name == ((urlsplit(allowed).hostname or "") if "//" in allowed else host_name(allowed))
    except ValueError:  # what is no name allows nothing
        return False


def names_in(text: object) -> list[str]:
    """The names in a list that is separated by commas, spaces or lines; none where it is no text."""
    return re.split(r"[\s,;]+", text.strip()) if isinstance(text, str) and text.strip() else []


@dataclass(frozen=True)
class KnownHosts:
    """Which names one host of the panel accepts.

    Attributes:
        allowed: the host's own names; called for every request, because a share link comes and goes.
        advice: completes "..., " in the refusal: what to do for a name that is the user's own.
        is_needed: whether a request is checked at all; not where it proves a login.
    """

    allowed: Callable[[], Iterable[str]] = tuple
    advice: str = "open the page by this machine's address instead"
    is_needed: Callable[[Any], bool] = lambda request: True

    def check(self, headers: Sequence[str], is_needed: bool = True) -> tuple[int, str]:
        """The code and the sentence with which a request with these ``Host`` headers is refused; no sentence where it is not."""
        try:
            name = host_name(headers[0] if len(headers) == 1 else "")
        except MalformedHost:
            return 400, "The request's Host header is no name or address of a machine; send it as localhost and the port."
        if not is_needed or is_known(name, self.allowed()):
            return 200, ""
        return 403, f"The page was opened as {name}, which is not known as a name of this machine; if it is one, {self.advice}."


#: The page sends its token in this header.
TOKEN_HEADER = "x-openvino-token"


@functools.cache
def page_token() -> str:
    """A random secret of this process, written into the pages it serves. A client that could load a page may use its routes."""
    return secrets.token_urlsafe(24)


def has_page_token(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page that this process served."""
    return secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), page_token().encode())


def has_password(headers: Mapping[str, str], credentials: Mapping[str, str]) -> bool:
    """Whether a request carries HTTP Basic credentials that are in ``credentials`` (password by user)."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, no UTF-8, or no ASCII
        return False
    expected = credentials.get(user)
    matches = secrets.compare_digest(password.encode(), (expected or "").encode())
    return matches and expected is not None


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something comes from our own page, or from no page at all (curl, a program).

    A browser names the origin of the page in ``Sec-Fetch-Site``, or at least in ``Origin``; a page can forge neither.
    Behind a reverse proxy the host that the browser sees is in ``X-Forwarded-Host``.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return True
    own_hosts = {headers.get("host", ""), headers.get("x-forwarded-host", "")} - {""}
    try:
        return urlsplit(origin).netloc in own_hosts
    except ValueError:  # such as http://[
        return False
