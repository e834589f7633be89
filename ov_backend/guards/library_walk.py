"""The part of a walk that looks at PyTorch's operators and at einops, whose functions find each other by name."""

from __future__ import annotations

import functools
import sys
import types

import torch

from ov_backend.core.patching import unwrap
from ov_backend.guards.describe import module_of, versioned
from ov_backend.guards.identity import code_number
from ov_backend.guards.names import NameWalk

#: Modules of torch and the names of their operators; these, replaced by others, would show nowhere else.
_OPERATORS: tuple[tuple[types.ModuleType, tuple[str, ...]], ...] = (
    (torch, (*dir(torch._C._VariableFunctions), *torch.functional.__all__)),
    *((module, tuple(vars(module))) for module in (torch.nn.functional, torch.linalg, torch.special, torch.fft)),
)
#: Where PyTorch's modules stand, and by which names they find the rest of PyTorch.
_MODULES = "torch.nn.modules."
_BORROWED: dict[str, types.ModuleType] = {"F": torch.nn.functional, "torch": torch}
#: The kinds of kernels that compute on the CPU; PyTorch itself puts others into its operators by ``torch.library``.
_OF_CPU = frozenset(
    {"", "CPU", "Autograd", "AutogradCPU", "AutogradFunctionality", "AutocastCPU", "ADInplaceOrView", "BackendSelect"}
    | {"CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}
)
_EINOPS_MODULES = {"einops.einops", "einops._backends"}
_EINOPS_NAMES = {"einops", "rearrange", "reduce", "repeat", "einsum"}


def _replaced_call() -> str:
    """The Python module of what stands for ``torch.nn.Module.__call__``; "" for PyTorch's own and for a patch of ours."""
    function = unwrap(vars(torch.nn.Module)["__call__"])
    module = module_of(function) if isinstance(function, types.FunctionType) else ""
    return "" if versioned(module) else module


def _replaced_kernel() -> str:
    """An operator of PyTorch for which ``torch.library`` was given another kernel, or ""."""
    keys = (str(key).split("/") for key in torch.library._impls)
    of_cpu = ((key[1], key[-1] or "CompositeImplicitAutograd") for key in keys if key[0] == "aten" and key[-1] in _OF_CPU)
    return next((name for name, kind in of_cpu if _has_kernel(name, kind)), "")


def _has_kernel(name: str, kind: str) -> bool:
    """Whether an operator has a kernel of a kind; PyTorch 2.3 goes on to list one of its own that it has taken out again."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", kind)


class LibraryWalk(NameWalk):
    """Looks at functions of libraries that may have been replaced."""

    #: Why no trace would be right, or "".
    refused: str

    def _torch_functions(self) -> None:
        """A function of torch that was replaced cannot be traced: torch's own functions find it by name."""
        for package, names in _OPERATORS:
            for name in names:
                value = vars(package).get(name)
                if callable(value) and not isinstance(value, type):
                    self.watch.key(vars(package), name)
                if isinstance(value, types.FunctionType) and not self._is_accounted_for(value):
                    self.refused = f"{package.__name__}.{name} was replaced by {module_of(value)}.{value.__qualname__}"

    def _kernels(self) -> None:
        """A kernel that was replaced; there are two thousand names, and comparing them takes 30 microseconds."""
        self.watch.content(functools.partial(frozenset, torch.library._impls))
        if replaced := _replaced_kernel():
            self.refused = f"the operator {replaced} was given another kernel by torch.library"

    def _functions_of_package(self, module: str) -> None:
        """What PyTorch's modules call beside their own methods; another thing there cannot be traced as theirs."""
        members = vars(sys.modules[module]) if module.startswith(_MODULES) and module in sys.modules else {}
        for name, value in list(members.items()):
            borrowed = _BORROWED.get(name)
            if borrowed is not None or isinstance(value, types.FunctionType):
                self.watch.key(members, name)
            foreign = isinstance(value, types.FunctionType) and not self._is_accounted_for(value)
            if foreign or (borrowed is not None and value is not borrowed):
                self.refused = f"{module}.{name} was replaced"

    def _call_of_modules(self) -> None:
        """``torch.nn.Module.__call__`` is PyTorch's own during a trace, whatever a program has put there."""
        replaced = _replaced_call()
        self.watch.content(_replaced_call)
        if replaced and replaced.partition(".")[0] not in {name.partition(".")[0] for name in self._host_modules}:
            self.refused = f"torch.nn.Module.__call__ was replaced by a function of {replaced}"

    def _einops(self) -> None:
        """The functions of einops, which find each other by name; torch's operators are looked at above."""
        if self._traced is not None and _EINOPS_NAMES.isdisjoint(self._traced.names):
            return
        for module_name in sorted(_EINOPS_MODULES & sys.modules.keys()):
            members = vars(sys.modules[module_name])
            for name, value in sorted(members.items()):
                if isinstance(value, types.FunctionType):
                    self.watch.key(members, name)
                    self._add_code(value)
                elif isinstance(value, type) and value.__module__ == module_name:
                    self.watch.class_members(value)
                    for member in vars(value).values():
                        if isinstance(member, types.FunctionType):
                            self._add_code(member)
        self._einops_backend()

    def _einops_backend(self) -> None:
        """The object by which einops calls torch; it is made at the first use, and holds nothing but torch itself."""
        members = vars(sys.modules["einops._backends"]) if "einops._backends" in sys.modules else {}
        backends = members.get("_loaded_backends", members.get("_backends", {}))  # the second name is that before 0.7
        self.watch.content(functools.partial(backends.get, "torch"))  # not by its key: a trace may be the first use
        attributes = vars(backends["torch"]) if "torch" in backends else {}
        self.watch.length(attributes)
        for name, value in sorted(attributes.items()):
            self.watch.key(attributes, name)
            if value is not torch:
                self._add("einops", name)
                self._value(value, f"einops' {name}")

    def _add_code(self, function: types.FunctionType) -> None:
        self.watch.attribute(function, "__code__")
        self._add(code_number(function.__code__))
        if not versioned(module_of(function)):
            self._value(function, function.__qualname__)

    def _is_accounted_for(self, function: types.FunctionType) -> bool:
        return versioned(module_of(function)) or module_of(function) in self._host_modules
