"""Who may use the panel's routes, decided from a request's headers alone."""

from __future__ import annotations

import base64
import functools
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

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
