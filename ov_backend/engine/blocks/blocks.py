"""A network by its blocks: PyTorch runs its forward, and OpenVINO answers the modules that the forward calls.

A network cannot be used as a whole where its forward belongs to other code, or does more than compute. The modules inside it
still can. Each is a network of its own, under the same rules: right, or in PyTorch. Where a module cannot be used, those that
its own forward calls are tried next, down to modules without children, which mostly stay in PyTorch.

Calls are met at ``torch.nn.Module.__call__``. Other code may save and exchange the forwards of modules in the meantime; it
never finds one of ours among them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ov_backend.core.errors import CaptureError, DeviceError, OVBackendError, PositionOutOfRange
from ov_backend.core.patching import class_member, unwrap
from ov_backend.engine import worker
from ov_backend.engine.blocks.foreign_code import foreign_forwards
from ov_backend.engine.int8 import much_noise
from ov_backend.engine.int8.blocks_precision import BlocksPrecision
from ov_backend.engine.int8.step_tape import Recorder, paused
from ov_backend.engine.request import BlockGone, CompiledEntry, Group
from ov_backend.engine.retried import Retried, running_network
from ov_backend.guards import autocast
from ov_backend.guards.checksums import Readings
from ov_backend.guards.signature import Call, Signature

#: A module without children is left alone behind so many sizes of its inputs: they depend on values, and each needs a graph.
_MAX_SIZES = 8


class Blockwise(Retried):
    """A network that is answered as a whole, else by its blocks, else by PyTorch. :func:`patch_calls` must be in effect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocks: dict[int, Block] = {}
        #: Of the weights of all blocks.
        self.readings = Readings()
        #: Those that were called since a run of calls began; the others may be of modules that are no longer in the network.
        self._called: set[int] = set()
        #: The paths of the modules inside, by their ids.
        self._inside: dict[int, str] = {}
        #: int8 where it is answered by its blocks.
        self.blocks_precision = BlocksPrecision(self.precision, self.statistics)
        self._group: Group | None = None
        #: The modules beside the network that were met in this run of calls.
        self._met: set[int] = set()
        #: Reasons by the code of other people's forwards that stood on modules when a network with these in it failed.
        self._refused: dict[frozenset[Hashable], str] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call by OpenVINO, as a whole or by blocks, if possible; otherwise by the original forward."""
        reason = "" if worker.inside() else self.why_left() or self.refusal(self.module)
        if reason:
            return self.by_blocks(reason, self._fallback, args, kwargs)
        return super().__call__(*args, **kwargs)

    def _ahead(self, work: Callable[[], bool]) -> bool:
        """As of every network; not where it is answered by its blocks."""
        return not (self.left or self.refusal(self.module)) and super()._ahead(work)

    def by_blocks(self, reason: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a forward, or other code's in its place, in PyTorch; the modules that it calls are OpenVINO's where possible."""
        if running_network.get() is self:
            return forward(*args, **kwargs)
        with paused(), autocast.noted():
            return self._by_blocks(reason, forward, args, kwargs)

    def _by_blocks(self, reason: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        calls, block_calls = self.statistics.calls, self.statistics.block_calls
        if self.resources.last != self.name:
            self._begin_blocks()
        self._group = Group.of(self.name, args, kwargs)
        self._inside = {id(module): path for path, module in self.module.named_modules()}
        token = running_network.set(self)
        try:
            noisy = much_noise.in_arguments(self.forward, args, kwargs)
            return self.blocks_precision.run(forward, partial(forward, *args, **kwargs), noisy)
        finally:  # also of a forward that raises
            running_network.reset(token)
            self.resources.last = self.name
            if self.statistics.block_calls > block_calls:
                self.statistics.divide(self.name, reason)
            elif self.statistics.calls == calls:  # else the other forward has called our own, which was answered as a whole
                self.statistics.fall_back(self.name, reason)

    def answer(self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer one call of a module that this network's forward makes."""
        network = self._network_of(original, module)
        return original(module, *args, **kwargs) if network is None else network(*args, **kwargs)

    def _network_of(self, original: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any] | None:
        """What answers a call of a module, or None where PyTorch does."""
        if not self._may_divide_at(module) or module._forward_hooks or module._forward_pre_hooks or module is self.module:
            return None
        if isinstance(module, torch.jit.ScriptModule):
            return None
        if self.hooks.companion is not None and id(module) not in self._inside:
            return self._companion(module)
        if self.hooks.block_refusal(module) or self.refusal(module):
            return None
        block = self._blocks.get(id(module))
        if block is None or block.has_another_forward():
            block = self._blocks[id(module)] = Block(self, original, module)
        self._called.add(id(module))
        block.context.group, block.low_precision.path = self._group, self._inside.get(id(module))
        return None if block.why_left() else block

    def _may_divide_at(self, module: torch.nn.Module) -> bool:
        """Whether a module is large enough to be a block."""
        return bool(module._modules)

    def block_at(self, path: str | None, original: Callable[..., Any], module: torch.nn.Module) -> Block | None:
        """The block that answers a module now, or None where PyTorch does, or where the module has another path."""
        block = self._network_of(original, module)
        return block if isinstance(block, Block) and block.low_precision.path == path else None

    def _companion(self, module: torch.nn.Module) -> Callable[..., Any] | None:
        companion = None if self.hooks.companion is None else self.hooks.companion(module)
        # its run of calls does not begin anew in each of ours
        self.resources.last = getattr(companion, "name", "") if id(module) in self._met else ""
        self._met.add(id(module))
        return companion

    def read_again(self) -> None:
        """Read all weights again before the next answer, so that no write is missed whatever way it took."""
        super().read_again()
        self._begin_blocks()
        for each in self._inner():
            each.read_again()

    def _inner(self) -> list[Retried]:
        """The networks inside that may answer in its place."""
        return list(self._blocks.values())

    def _begin_blocks(self) -> None:
        self._met.clear()
        if self._called:
            self._blocks = {key: block for key, block in self._blocks.items() if key in self._called}
            self._called.clear()
        self.precision.read_again()
        for block in list(self._blocks.values()):
            block.starts = True

    def refusal(self, module: torch.nn.Module) -> str:
        """Why a module cannot be used, as far as that is known from other modules with the same foreign forwards, or ""."""
        return self._refused.get(foreign_forwards(module), "") if self._refused else ""

    def remember(self, module: torch.nn.Module, error: OVBackendError) -> None:
        """Remember why a module could not be captured, if there are foreign forwards on it or inside it."""
        foreign = foreign_forwards(module)
        if foreign and isinstance(error, CaptureError):
            self._refused[foreign] = str(error)

    def retry(self) -> None:
        """Try the network as a whole and its blocks again."""
        super().retry()
        for block in list(self._blocks.values()):
            block.retry()

    def clear(self) -> None:
        """Clear refusals and the state of weights and code, and let go of the blocks."""
        super().clear()
        for each in self._inner():
            each.clear()
        self._blocks.clear()
        self._called.clear()
        self._refused.clear()

    def release(self) -> None:
        """Release weights that the module no longer uses."""
        super().release()
        for each in self._inner():
            each.release()

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        for_all = isinstance(error, (DeviceError, PositionOutOfRange))  # no block would fare better
        if for_all or self.resources.settings.fallback == "raise":
            return super()._fall_back(error, args, kwargs)
        self.left = str(error)
        self.remember(self.module, error)
        return self.by_blocks(self.left, self._fallback, args, kwargs)


class Block(Retried):
    """One module that a network's forward calls; its statistics and its compiled graphs are those of the network.

    ``original`` is PyTorch's way to call it, ``shadow`` the forward that stands on the instance, and ``state`` that of the last
    answer, see :class:`CompiledEntry`. Where a run of calls ``starts``, its weights are read again.
    """

    _is_inside = True

    def __init__(self, whole: Blockwise, original: Callable[..., Any], module: torch.nn.Module) -> None:
        self.shadow, self._of_class = vars(module).get("forward"), _forward_of_class(module)
        forward = self.shadow or unwrap(type(module).forward).__get__(module)
        forward = whole.hooks.block_traced(module, forward)
        hooks = replace(whole.hooks, fallback=partial(original, module))
        shared = whole.statistics, whole.readings, whole.precision
        super().__init__(whole.resources, whole.name, module, forward, hooks, *shared)
        self._lookup.overflowed.all_in_f32 = whole._lookup.overflowed.all_in_f32
        self._whole, self._original = whole, original
        self.starts, self.state = True, ("", "", "")

    def has_another_forward(self) -> bool:
        """Whether PyTorch would call another forward of the module than when this block was made."""
        shadow = vars(self.module).get("forward")
        return shadow is not self.shadow or (shadow is None and _forward_of_class(self.module) is not self._of_class)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        return super()._call(*self.hooks.block_arguments(self.module, args, kwargs))

    def _lookup_or_compile(self, call: Call, interrupted: worker.Interruption | None) -> CompiledEntry:
        if not self.module._modules and call.signature not in self._states and len(self._states) >= _MAX_SIZES:
            raise CaptureError("its inputs have ever new sizes")
        self.resources.last, self.starts = "" if self.starts else self.name, False
        return super()._lookup_or_compile(call, interrupted)

    def repeat(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call again; it is not counted, and PyTorch does not answer it."""
        call = self._call(args, kwargs)
        with self.low_precision.for_call(call):
            entry = self._lookup_or_compile(call, self.resources.interrupted)
        return entry.result(self._compute(entry, call))

    def _compute(self, entry: CompiledEntry, call: Call) -> list[torch.Tensor]:
        self.state = entry.state
        return super()._compute(entry, call)

    def _record(self, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        place = BlockPlace(weakref.ref(self._whole), weakref.ref(self.module), self._original, self.low_precision.path)
        recorder.note(place.repeat, args, kwargs, result, place.state)

    def _count(self) -> None:
        self.statistics.block_calls += 1

    def _note(self, signature: Signature) -> None:
        """Nothing: blocks are no networks of the run."""

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.resources.settings.fallback == "raise":
            return super()._fall_back(error, args, kwargs)
        self.left = str(error)
        self._whole.remember(self.module, error)
        self.statistics.leave_block(self.name, type(self.module).__name__, self.left)
        return self._fallback(*args, **kwargs)


def _forward_of_class(module: torch.nn.Module) -> Any:
    return unwrap(class_member(type(module), "forward"))


@dataclass(frozen=True)
class BlockPlace:
    """Where a block stood when its call was recorded: what stands there now can compute the call again.

    Another forward on its module makes it another block, which stands in the same place. ``original`` is PyTorch's way to call
    the module; ``path`` is None where the module is not a part of the network.
    """

    whole: weakref.ref[Blockwise]
    module: weakref.ref[torch.nn.Module]
    original: Callable[..., Any]
    path: str | None

    def repeat(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call of the block that stands here now; :class:`BlockGone` where PyTorch would."""
        block = self._block()
        if block is None:
            raise BlockGone("a block that was observed is no longer in the network")
        return block.repeat(*args, **kwargs)

    def state(self) -> tuple[str, str, str]:
        """What the block's last answer was computed with, see :class:`CompiledEntry`; empty if it is no longer there."""
        block = self._block()
        return ("", "", "") if block is None else block.state

    def _block(self) -> Block | None:
        whole, module = self.whole(), self.module()
        return None if whole is None or module is None else whole.block_at(self.path, self.original, module)


class RootNetwork(Blockwise):
    """A network that its host calls beside those that make a picture: an upscaler, a detector, an interrogator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Whether it is computed in f32 where the engine's precision is lower.
        self.in_f32 = False
        self._lookup.overflowed.all_in_f32 = lambda: self.in_f32

    def _note(self, signature: Signature) -> None:
        """Nothing: whether it is called does not depend on what a run asks of the model."""
