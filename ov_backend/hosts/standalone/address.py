"""Where the page listens: the socket, what is said where nobody can listen, and what a browser is given."""

from __future__ import annotations

import errno
import socket

from ov_backend.core.errors import SettingsError, short_repr

_OWN = "give 127.0.0.1 for this machine only, 0.0.0.0 for every address that it has, or one of them"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at a name, or at an address of version 4 or 6.

    Raises:
        SettingsError: nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, OverflowError, ValueError) as error:  # a ValueError for what is no name of a host
        raise SettingsError(f"--host is {short_repr(host)}, which is no address and no name of a machine; {_OWN}.") from error
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SettingsError(_problem(host, port, error)) from error


def _problem(host: str, port: int, error: OSError) -> str:
    """Why nobody can listen at an address."""
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host is {host!r}, which is no address of this machine; {_OWN}."
    reasons = {errno.EADDRINUSE: "something else listens at", errno.EACCES: "this user may not listen at"}
    if error.errno not in reasons:
        return f"--host is {host!r}, where nobody can listen ({error.strerror or error}); {_OWN}."
    return f"--port is {port}, which {reasons[error.errno]} on {host}; give another, or 0 for any free one."


def url(host: str, port: int) -> str:
    """What a browser is given to open the page."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
