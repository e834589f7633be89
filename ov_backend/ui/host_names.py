"""Under which names the panel may be asked where nobody is asked for a login.

A page of another site can give its own name the address of this machine (DNS rebinding). A browser then takes this server for a
part of that site, and lets its page use the routes. The browser's ``Host`` header still has the other site's name, so only
names that lead here for sure are accepted: addresses, which cannot be rebound, and names that this machine or its owner chose.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
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
