"""What stands in the WebUI's process: functions of classes and modules, attributes and hooks of the model, weights, settings."""

import inspect
import sys
import zlib

import probe_files
import torch
from modules import shared

PACKAGES = ("torch.nn", "ldm", "sgm", "modules", "k_diffusion", "networks", "l_networks", "transformers.models.clip", "open_clip")
PACKAGES += ("ldm_patched", "backend", "modules_forge")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
#: What the WebUI itself notes in its settings and its modules with every picture.
VOLATILE = ("modules.shared.state", "modules.shared.total_tqdm")


def everything():
    """Everything by name, as text; what an extension leaves behind is a name or a text that was not there before."""
    state = {}
    for name, module in list(sys.modules.items()):
        if module is not None and any(name == package or name.startswith(f"{package}.") for package in PACKAGES):
            for attribute, value in list(vars(module).items()):
                if inspect.isfunction(value):
                    state[f"{name}.{attribute}"] = described(value)
                elif inspect.isclass(value) and value.__module__ == name:
                    functions = ((n, v) for n, v in list(vars(value).items()) if callable(v) and not inspect.isclass(v))
                    state.update({f"{name}.{attribute}.{n}": described(v) for n, v in functions})
    model = shared.sd_model
    roots = {"model": model} if isinstance(model, torch.nn.Module) else probe_files.roots_in_use()
    modules = ((f"{root} {path}", module) for root, network in roots.items() for path, module in network.named_modules())
    for path, module in modules:
        state[path] = type(module).__module__ + "." + type(module).__qualname__
        for name, value in vars(module).items():
            if name in HOOKS:
                state[f"{path} {name}"] = f"{len(value)}"
            elif not name.startswith("_"):
                state[f"{path} {name}"] = described(value) if callable(value) else type(value).__name__
    for name in GLOBAL_HOOKS:
        state[f"torch {name}"] = f"{len(getattr(torch.nn.modules.module, name, ()))}"
    state.update({f"setting {name}": repr(value) for name, value in shared.opts.data.items()})
    for root, network in roots.items():
        state.update({f"weight {root} {name}": checksum(weight) for name, weight in network.state_dict().items()})
    return {name: text for name, text in state.items() if not name.startswith(VOLATILE)}


def checksum(weight):
    """A short text for a weight's content."""
    return f"{zlib.crc32(weight.detach().float().contiguous().numpy()):08x}"


def described(value):
    """Where a function is written; two closures of the same function are alike."""
    function = inspect.unwrap(value) if not hasattr(value, "_ov_backend_patched") else value
    function = getattr(function, "__func__", function)
    ours = " of ov_backend" if hasattr(value, "_ov_backend_patched") else ""
    code = getattr(function, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code else type(function).__name__
    return f"{getattr(function, '__qualname__', '')} {place}{ours}"
