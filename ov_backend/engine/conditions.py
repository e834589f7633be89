"""When a call cannot be OpenVINO's: a mode sees every operator, a trace has changed something, a result is not finite."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ov_backend.core import devices
from ov_backend.core.errors import CaptureError, OVBackendError
from ov_backend.engine.request import CompileRequest, Superseded
from ov_backend.guards.code import CodeGuard
from ov_backend.trace.capture.forward import Reach


def restore_containers(guard: CodeGuard, reach: Reach, request: CompileRequest) -> None:
    """Put back what a trace has changed, and raise if there was something; ``Superseded`` if another thread may have done it."""
    state = reach.before[0] if reach.before else None
    if state is not None:
        has_put, has_named = state.restore_process(), state.restore_names(guard.names)  # a forward may change both
        if state.changed(guard.containers):
            if request.abandoned.is_set() or not state.restore(guard.containers):
                raise Superseded
            raise CaptureError("its forward changes a list, dict, array, class or generator, which a compiled graph would not do")
        if has_named:
            raise CaptureError("its forward sets a name in a Python module, which a compiled graph would not do")
        if has_put:
            raise CaptureError("its forward changes sys.modules or the filters of warnings, which a compiled graph would not do")
    if guard.refused:
        raise CaptureError(guard.refused)


def check_modes(module: torch.nn.Module) -> None:
    """Raise where PyTorch records or sees what a compiled graph does not do."""
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()):
        raise CaptureError("its weights ask for gradients, which OpenVINO does not record; call it under torch.no_grad()")
    if mode := foreign_mode():
        raise CaptureError(f"{mode} is active, which sees every operator")


def foreign_mode() -> str:
    """The name of an active mode that changes what operators do, or ""; a default device that is the CPU is none.

    A transform of ``torch.func`` and the tracer of TorchScript are such modes, too.
    """
    transform = torch._C._functorch.peek_interpreter_stack()
    if transform is not None:
        return f"torch.func's {transform.key().name.lower()}"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if not (isinstance(mode, DeviceContext) and torch.device(mode.device).type == "cpu"):
            return type(mode).__name__
    return ""


def check_derivatives() -> None:
    """Raise where ``torch.autograd.forward_ad`` computes derivatives now, beside the results."""
    if forward_ad._current_level >= 0:
        raise CaptureError("derivatives are computed forward, which OpenVINO does not do")


def check_process(pid: int) -> None:
    """Raise in a process that was forked from the one of this number, or after OpenVINO had computed."""
    if os.getpid() != pid or devices.lacks_threads():
        raise OVBackendError("this process was forked, and OpenVINO's threads stayed behind")


def has_finite_inputs(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no input holds NaN or infinity; the negative infinity of a mask, which has no positive values, is none."""
    dense = (x for x in tensors if x.layout is torch.strided and x.is_floating_point() and x.numel())
    limits = (x.detach().float().aminmax() for x in dense)
    return all(math.isfinite(high) and (math.isfinite(low) or high <= 0) for low, high in limits)


def is_finite(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether all values are finite; one sum per tensor is enough, as infinity and NaN both propagate to it."""
    return all(math.isfinite(x.sum(dtype=torch.float32)) for x in outputs if x.is_floating_point())
