"""Stable Diffusion on OpenVINO: a ``torch.compile`` backend and an engine for whole pipelines.

Use ``torch.compile(model, backend="openvino_fx")`` or ``ov_backend.accelerate(pipe)``. Importing this package imports PyTorch
and nothing else that takes time: the backends are registered once PyTorch's compiler is imported, and OpenVINO itself is loaded
at first use. Names outside of ``__all__`` are internal. The command line imports PyTorch after it has looked at its arguments.
"""

from __future__ import annotations

from ov_backend.core import interrupts

if interrupts.is_command():  # before the imports that take seconds
    interrupts.install()

# isort: split
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ov_backend.core.after_import import after_import
from ov_backend.core.errors import MissingPackage, OVBackendError
from ov_backend.core.settings import Settings
from ov_backend.version import __version__

if TYPE_CHECKING:
    from ov_backend.batch.api import batch
    from ov_backend.pipelines.accelerate import accelerate
    from ov_backend.pipelines.ray_data import AcceleratedPipeline
    from ov_backend.torch_compile.backend import reset, stats
    from ov_backend.torch_compile.explain import explain

__all__ = [
    "AcceleratedPipeline",
    "OVBackendError",
    "Settings",
    "__version__",
    "accelerate",
    "batch",
    "explain",
    "openvino_fx",
    "openvino_ts",
    "reset",
    "stats",
]

_LAZY = {
    "AcceleratedPipeline": "ov_backend.pipelines.ray_data",
    "accelerate": "ov_backend.pipelines.accelerate",
    "explain": "ov_backend.torch_compile.explain",
    "reset": "ov_backend.torch_compile.backend",
    "stats": "ov_backend.torch_compile.backend",
}


def __getattr__(name: str) -> Any:
    if name == "batch":  # a package that can be called
        return import_module("ov_backend.batch")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def openvino_fx(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Any:
    """The ``torch.compile`` backend: ``torch.compile(model, backend="openvino_fx", options={"precision": "f32"})``.

    ``options`` are the fields of :class:`Settings`; not given, ``fallback`` is "inductor", and ``model_caching`` is off.

    Dynamo turns what is raised here into its own ``BackendCompilerFailed``, with the same sentence.

    Raises:
        SettingsError: an option is unknown or has an unusable value.
        DeviceError: the device does not exist, cannot compute in that precision, or does not take a property of ``config``.
    """
    return import_module("ov_backend.torch_compile.backend").openvino_fx(gm, example_inputs, options=options, **kwargs)


def openvino_ts(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Any:
    """As :func:`openvino_fx`, but every subgraph is traced to TorchScript and converted from that."""
    return import_module("ov_backend.torch_compile.backend").openvino_ts(gm, example_inputs, options=options, **kwargs)


def _reset() -> None:
    import_module("ov_backend.torch_compile.backend").reset()


def _frame_given_up(where: str, reason: str, options: Mapping[str, Any]) -> bool:
    given_up: bool = import_module("ov_backend.torch_compile.backend").frame_given_up(where, reason, options)
    return given_up


def _frames_broken(broken: dict[str, str]) -> None:
    import_module("ov_backend.torch_compile.backend").frames_broken(broken)


#: Dynamo calls the first attribute of a backend when it resets; :mod:`ov_backend.torch_compile.frames` calls the others.
openvino_fx.reset = openvino_ts.reset = _reset  # type: ignore[attr-defined]
openvino_fx.frame_given_up = openvino_ts.frame_given_up = _frame_given_up  # type: ignore[attr-defined]
openvino_fx.frames_broken = openvino_ts.frames_broken = _frames_broken  # type: ignore[attr-defined]


def _register() -> None:
    """Register the backends with Dynamo, unless an earlier import or the entry points did so."""
    from torch._dynamo.backends import registry

    for backend in (openvino_fx, openvino_ts):
        if backend.__name__ not in registry._BACKENDS:
            registry.register_backend(backend, name=backend.__name__)


def _settle_cuda_guard() -> None:
    """Call what every trace calls, here first: usually this is the main thread.

    PyTorch 2.11 built for CUDA ends the process, on a machine without a CUDA device, if another thread is the first to call it
    and the main thread calls it later. Traces run in a worker thread.
    """
    import torch

    settle = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if settle is not None and torch.version.cuda is not None and not torch.cuda.is_available():
        settle()


def prepare_torch() -> None:
    """Register the backends with PyTorch's compiler, see what it makes no graph of, and make it ready for traces in threads."""
    _register()
    import_module("ov_backend.torch_compile.frames").watch_frames()
    _settle_cuda_guard()


after_import("torch._dynamo", prepare_torch)
if not interrupts.is_command():
    try:
        _settle_cuda_guard()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPackage("ov_backend needs PyTorch, which is not installed here; run: pip install torch") from None
