"""The part of a walk that looks at PyTorch's modules (their tables, attributes, children and hooks), and at its operators.

Functions of libraries find each other by name, so one that was replaced would show nowhere else.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.core.patching import class_member, is_patched, unwrap
from ov_backend.guards.describe import (
    DOCUMENTATION,
    MODULE_TABLES,
    NOTED,
    OF_STATE_DICT,
    QUIET_TABLES,
    SAVES_STATE,
    asks_for_gradients,
    number_of,
    own_member,
)
from ov_backend.guards.names import NameWalk
from ov_backend.guards.packages import is_put_there
from ov_backend.guards.traced_code import TracedCode
from ov_backend.guards.versions import module_of, versioned

#: What stands in modules of torch, and the names of their operators.
_OPERATORS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    (vars(torch), (*dir(torch._C._VariableFunctions), *torch.functional.__all__)),
    *((vars(module), tuple(vars(module))) for module in (torch.nn.functional, torch.linalg, torch.special, torch.fft)),
)
_EINOPS = ("einops.einops", "einops._backends")
#: Where PyTorch's modules stand, and by which names they find the rest of PyTorch.
_MODULES = "torch.nn.modules."
_BORROWED: dict[str, types.ModuleType] = {"F": torch.nn.functional, "torch": torch}
#: The kinds of kernels that compute on the CPU; PyTorch itself puts others into its operators by ``torch.library``.
_OF_CPU = frozenset(
    {"", "CPU", "Autograd", "AutogradCPU", "AutogradFunctionality", "AutocastCPU", "ADInplaceOrView", "BackendSelect"}
    | {"CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}
)


def _replaced_call() -> str:
    """The Python module of what stands for ``torch.nn.Module.__call__``; "" for PyTorch's own and for a patch of ours."""
    function = unwrap(vars(torch.nn.Module)["__call__"])
    module = module_of(function) if isinstance(function, types.FunctionType) else ""
    return "" if versioned(module) else module


def _replaced_kernel() -> str:
    """An operator of PyTorch for which ``torch.library`` was given another kernel, or ""."""
    keys = (str(key).split("/") for key in torch.library._impls)
    of_cpu = ((key[1], key[-1] or "CompositeImplicitAutograd") for key in keys if key[0] == "aten" and key[-1] in _OF_CPU)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # PyTorch 2.3 goes on to list one that it has taken out again
    return next((name for name, kind in of_cpu if has_kernel(f"aten::{name}", kind)), "")


def _is_only_ours(module: torch.nn.Module, name: str, value: Any) -> bool:
    """Whether an attribute is a patch of ours, below which stands what the module has of its class."""
    if not is_patched(value):
        return False
    original = unwrap(value)
    if getattr(original, "__self__", None) is module:
        return unwrap(original.__func__) is unwrap(class_member(type(module), name))
    return original is value  # it replaces no function


def quiet_tables_read(traced: TracedCode | None) -> frozenset[str]:
    """The tables of each module that the code of a trace reads although they are of no matter for a call of the module."""
    if traced is None:
        return frozenset()
    if traced.computes_names or traced.lists_attributes:
        return QUIET_TABLES
    of_state_dict = OF_STATE_DICT if SAVES_STATE in traced.names else frozenset()
    return (QUIET_TABLES & traced.own_names) | of_state_dict


class ModuleWalk(NameWalk):
    """Looks at every module of the tree that is walked, and at functions of libraries that may have been replaced."""

    _package_class: Callable[[type], None]
    #: Why no trace would be right, or "".
    refused: str
    #: Where each module of the tree stands in it, by ``id``.
    _tree: dict[int, str]
    #: Where each weight of the tree stands in it, by ``id``.
    _weights: dict[int, str]
    #: The quiet tables that code reads (:func:`quiet_tables_read`), and whether it may go through weights in their order.
    _tables_read: list[str]
    _weights_in_order: bool

    def _walk_tree(self, module: torch.nn.Module, root: str) -> None:
        children = [(f"{root}.{path}".strip(".") if root else path, child) for path, child in module.named_modules()]
        self._tree.update((id(child), path) for path, child in children)
        self._weights.update((id(weight), path) for path, weight in (*module.named_parameters(root), *module.named_buffers(root)))
        self._tree_classes.update(str(type(child)) for _, child in children)
        self._alive.append(module)
        for path, child in children:
            self._module(path, child)

    def _place_in_tree(self, value: object) -> str | None:
        """Where a module or a weight stands in the tree; None for anything else."""
        return self._tree.get(id(value), self._weights.get(id(value)))

    def _module(self, path: str, module: torch.nn.Module) -> None:
        cls = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            self.refused = f"{path or 'the module'} is scripted by torch.jit, which keeps no code that could be read"
            return
        self.description.begin(f"{path}!")
        self._add("module", path, cls.__module__, cls.__qualname__)
        self.description.begin(f"{path}!training")
        self._add(module.training)
        self.description.begin(f"{path}!")
        for weights in (module._parameters, module._buffers):
            names = [name for name, value in weights.items() if value is not None]
            self._add(*(names if self._weights_in_order else sorted(names)), "|")
            (self.watch.order if self._weights_in_order else self.watch.length)(weights)
        self._add(*(f"{name}={self._tree.get(id(child))}" for name, child in module._modules.items()))
        self.watch.type_of(module)
        self._class(cls)
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            self._attributes_of_weight(value, f"{path}.{name}")
        attributes = vars(module)
        self.watch.attributes_of_module(attributes)
        for table in (module._modules, module._forward_hooks, module._forward_pre_hooks):
            self._watch_table(table)
        for name in self._listed(attributes):
            skipped = name in MODULE_TABLES or name in NOTED or _is_only_ours(module, name, attributes[name])
            if self._is_read(name) and not skipped:
                self.description.begin(f"{path}!{name}")
                self._add(name)
                self._entry(attributes, name, f"{path}!{name}")
        for name in self._tables_read:
            self._quiet_table(attributes, name, f"{path}!{name}")
        if self._traced is None:
            self._watch_quiet_tables(attributes)
        for kind in ("_forward_hooks", "_forward_pre_hooks"):
            for number, (key, hook) in enumerate(attributes[kind].items()):
                self.description.begin(f"{path}!{kind}[{number}]")
                self._add("hook", kind, key in attributes.get(f"{kind}_with_kwargs", {}))
                self._value(hook, f"{path}!{kind}[{number}]")

    def _quiet_table(self, attributes: dict[str, Any], name: str, path: str) -> None:
        """One of the tables that code reads: its hooks, or a value."""
        table = attributes.get(name)
        self._add(name)
        if isinstance(table, dict):
            self._watch_table(table)
            for key, hook in table.items():
                self._add(key if name in self._own_names else "")  # the process counts them
                self._value(hook, path)
        elif name in attributes:
            self._entry(attributes, name, path)

    def _watch_quiet_tables(self, attributes: dict[str, Any]) -> None:
        """Before a trace it is not known whether code reads them, but it may change them."""
        for name in sorted(QUIET_TABLES & attributes.keys()):
            if isinstance(attributes[name], dict):
                self._watch_table(attributes[name])
            elif isinstance(attributes[name], set):
                self.watch.values.append(attributes[name])

    def _gradients_asked_for(self, module: torch.nn.Module) -> None:
        """Which weights ask for gradients, where code reads that."""
        if self._traced is not None and "requires_grad" in self._traced.names:
            read = functools.partial(asks_for_gradients, module)
            self.watch.content(read)
            self._add("requires_grad", read())

    def _attributes_of_weight(self, tensor: torch.Tensor | None, path: str) -> None:
        """What Python code keeps on a tensor is not there on the fake tensor that a trace sees."""
        attributes = {} if tensor is None else vars(tensor)
        self.watch.length(attributes)
        if tensor is not None and (member := own_member(type(tensor))):
            self.refused = f"{path} is of a class of its own, {type(tensor).__name__} with {member}, which a trace does not see"
        read = [name for name in attributes if name not in DOCUMENTATION and self._names is not None and self._is_read(name)]
        if read:
            self.refused = f"{path} has an attribute {read[0]!r} of its own, which a trace does not see"

    def _torch_functions(self) -> None:
        """A function of torch or einops that was replaced cannot be traced: their own functions find it by name."""
        einops = (vars(sys.modules[name]) for name in _EINOPS if name in sys.modules)
        for package, names in (*_OPERATORS, *((members, tuple(members)) for members in einops)):
            for name in names:
                value = package.get(name)
                if callable(value) and not isinstance(value, type):
                    self.watch.key(package, name)
                if isinstance(value, types.FunctionType) and not self._is_accounted_for(value):
                    self.refused = f"{package['__name__']}.{name} was replaced by {module_of(value)}.{value.__qualname__}"
                elif callable(value) and is_put_there(value) and type(value).__module__ not in self._host_modules:
                    self.refused = f"{package['__name__']}.{name} was replaced by a {type(value).__name__}"

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
        """The object by which einops calls torch, which is made at the first use and holds nothing but torch, and its classes."""
        for module in (sys.modules[name] for name in _EINOPS if name in sys.modules):
            values = list(vars(module).values())
            for cls in (value for value in values if isinstance(value, type) and value.__module__ == module.__name__):
                self.watch.class_members(cls)
                for function in (member for member in vars(cls).values() if isinstance(member, types.FunctionType)):
                    self.watch.attribute(function, "__code__")
                    self._add(number_of(function.__code__))
                    if not versioned(module_of(function)):
                        self._value(function, function.__qualname__)
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

    def _is_accounted_for(self, function: types.FunctionType) -> bool:
        return versioned(module_of(function)) or module_of(function) in self._host_modules
