"""Joins a Ray cluster, or starts Ray on this machine; what is wrong with an address is one sentence."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from typing import Any

from ov_backend.core import interrupts
from ov_backend.core.errors import OVBackendError, SettingsError, first_line, short_repr

#: The address that stands for processes of this machine only.
LOCAL = "local"
_CONNECT_S = 5


def import_ray() -> Any:
    """Import Ray, and keep it from sending usage statistics.

    Raises:
        OVBackendError: it is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise OVBackendError("--ray and --workers need one more package: pip install 'ray>=2.54'") from error


def check_address(address: str) -> None:
    """Check that something answers at an address; Ray itself would try for minutes.

    Raises:
        SettingsError: nothing does, or it is no address.
    """
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or "/" in host or not port.isdecimal():
        expected = "it must be HOST:PORT, as ray start --head prints it, auto or local"
        raise SettingsError(f"--ray is {short_repr(address)}; {expected}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        advice = "run ray start --head on that machine, or give --ray local"
        raise SettingsError(f"--ray is {address[:200]!r}, where nothing answers ({first_line(error)}); {advice}.") from error


def connect(ray: Any, address: str) -> None:
    """Join the cluster at an address, or start Ray here where that is "local".

    Raises:
        SettingsError: no cluster answers, or it does not accept this machine's token.
    """
    check_address(address)
    local = {"include_dashboard": False} if address == LOCAL else {}
    try:
        if address not in (LOCAL, "auto"):
            _check_token(ray, address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        interrupts.install_for_termination()  # Ray's own handler prints a stack of C++
    except ray.exceptions.AuthenticationError as error:
        raise SettingsError(f"--ray is {address[:200]!r}, {_about_token(error)}.") from error
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:  # an OSError where nothing is found
        advice = "start Ray with ray start --head, or give --ray local"
        raise SettingsError(f"--ray is {address[:200]!r}, where Ray does not answer ({first_line(error)}); {advice}.") from error


def _check_token(ray: Any, address: str) -> None:
    """Ask a cluster for its number: without its token, ``ray.init`` would try for half a minute and not say why.

    Raises:
        AuthenticationError: of Ray's.
        RayError: nothing of Ray's answers.
    """
    try:
        setup = importlib.import_module("ray._private.authentication.authentication_token_setup")
        require, client = setup.ensure_token_if_auth_enabled, ray._raylet.GcsClient
    except (ImportError, AttributeError):  # another version of Ray; then ray.init says what is wrong
        return
    require(create_token_if_missing=False)  # without a token the client would end this process
    client(address=address)


def _about_token(error: Exception) -> str:
    """What to set where a token is missing or wrong."""
    where = "the file ~/.ray/auth_token or the variable RAY_AUTH_TOKEN"
    if "RAY_AUTH_MODE is currently" in str(error):  # Ray's note where it is not "token"
        return f"which asks for a token; set RAY_AUTH_MODE=token, and put the cluster's token into {where}"
    reason = first_line(error).partition(". ")[0][:200]
    how = "ray get-auth-token on the cluster's first machine prints it"
    return f"which needs another token ({reason}); put the cluster's into {where} ({how})"
