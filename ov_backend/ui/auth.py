"""Who may use the panel's routes, decided from a request's headers alone."""

from __future__ import annotations

import base64
import binascii
import functools
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

#: The page sends its token in this header.
TOKEN_HEADER = "x-openvino-token"


@functools.cache
def page_token() -> str:
    """A secret of this process that stands in its pages: whoever was allowed to load the page may use its routes."""
    return secrets.token_urlsafe(24)


def has_page_token(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page that this process served."""
    return secrets.compare_digest(headers.get(TOKEN_HEADER, "").encode(), page_token().encode())


def has_password(headers: Mapping[str, str], credentials: Mapping[str, str]) -> bool:
    """Whether a request carries HTTP Basic credentials out of ``credentials`` (password by user)."""
    kind, _, encoded = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return False
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return False
    expected = credentials.get(user)
    matches = secrets.compare_digest(password.encode(), (expected or "").encode())
    return matches and expected is not None


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something comes from our own page, or from no page at all (curl, a program).

    A browser says itself, in ``Sec-Fetch-Site``, whose page it was, or at least names the page in ``Origin``; no page can
    make it lie in either. Behind a reverse proxy the address that the browser sees is in ``X-Forwarded-Host``.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return True
    ours = {headers.get("host", ""), headers.get("x-forwarded-host", "")} - {""}
    return urlsplit(origin).netloc in ours
