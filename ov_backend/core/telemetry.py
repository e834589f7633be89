"""Imports OpenVINO without its telemetry; every package that uses OpenVINO imports this module first.

OpenVINO's Python package starts ``openvino_telemetry`` when it is imported. That package writes a client identifier and a
counter into the folder ``intel`` of the user's home and sends events to Google Analytics: the version, what is converted, how
it is called. Its own way to decline (the command ``opt_in_out --opt_out``) is a file in the user's home, which is the user's to
write. So the package is absent while OpenVINO is imported, a case that OpenVINO provides for, and there again afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence

from ov_backend.version import openvino_problem

_NAME = "openvino_telemetry"
#: They look for telemetry when they are imported; OpenVINO imports them lazily or not, depending on its version.
_TOOLS = ("openvino.tools.ovc",)
#: These import torch, which takes seconds; only a conversion needs them.
_FRONTENDS = ("openvino.frontend.pytorch.ts_decoder", "openvino.frontend.pytorch.fx_decoder")


@contextlib.contextmanager
def absent(name: str) -> Iterator[None]:
    """In this block, a package cannot be imported; afterwards it is as before."""
    saved = {each: sys.modules[each] for each in list(sys.modules) if each == name or each.startswith(f"{name}.")}
    for each in saved:
        del sys.modules[each]
    sys.modules[name] = None  # type: ignore[assignment]  # what makes an import raise
    try:
        yield
    finally:
        del sys.modules[name]
        sys.modules.update(saved)


def import_openvino() -> None:
    """Import OpenVINO, unless somebody else has done so; a part that this version lacks is left out.

    Raises:
        ImportError: OpenVINO is not installed, or too old.
    """
    problem = openvino_problem()
    if problem:
        raise ImportError(problem)
    with absent(_NAME):
        importlib.import_module("openvino")
    _import_all(_TOOLS)


def import_frontends() -> None:
    """Import OpenVINO's readers of PyTorch's graphs, as far as this version has them."""
    _import_all(_FRONTENDS)


def _import_all(names: Sequence[str]) -> None:
    with absent(_NAME):
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


import_openvino()
