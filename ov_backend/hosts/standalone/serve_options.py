"""The options of the command ``serve``, and the address where it listens; needs no PyTorch."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from ov_backend.core.errors import SettingsError, short_repr


@dataclass(frozen=True)
class Options:
    """Options of the command ``serve``.

    Attributes:
        checkpoint: a .safetensors file; None is the project's own.
        checkpoints: those to choose from in the page; none where there is no choice.
        host: address to listen at.
        port: port to listen at; 0 is any free one.
        out: folder that the pictures are written to.
        cache_dir: folder of the graph store; None is that of the environment, else the user's cache folder.
        auth: the login to ask for, "user:password", or None.
        prepare: at the start, prepare the networks that the last generation has called.
        lora_dir: folder of the LoRAs that prompts name; None is the folder ``lora`` beside the checkpoint.
        upscaler_dir: folder of the upscalers for hires fix; None is the folder ``upscaler`` beside the checkpoint.
        device: the panel's first choice; None is the default.
        precision: the panel's first choice.
        allow_host: further names that the page may be opened under, where no login is asked for.
    """

    checkpoint: Path | None = None
    checkpoints: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = 7865
    out: Path = Path("out")
    cache_dir: str | None = None
    auth: str | None = None
    prepare: bool = True
    allow_host: tuple[str, ...] = ()
    lora_dir: Path | None = None
    upscaler_dir: Path | None = None
    device: str | None = None
    precision: str = "auto"


def login(text: str | None) -> tuple[str, str] | None:
    """Read ``--auth`` into user and password.

    Raises:
        SettingsError: one of them is missing.
    """
    if text is None:
        return None
    user, _, password = text.partition(":")
    if not user or not password:
        raise SettingsError("--auth must be USER:PASSWORD, both of them not empty.")
    return user, password


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
