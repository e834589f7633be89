"""Python numbers among a network's arguments: from the second value on they are inputs, where the forward allows that."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ov_backend.core.errors import DeviceError, Interrupted, OVBackendError, pass_on_signals
from ov_backend.core.tensors import TensorSpec
from ov_backend.engine.lookup import remember
from ov_backend.engine.request import CompiledEntry
from ov_backend.guards.pytree import Spec
from ov_backend.guards.signature import Call, Signature
from ov_backend.trace.capture.forward import Reach
from ov_backend.trace.capture.number_inputs import NumberInputs
from ov_backend.trace.capture.trace import Captured

log = logging.getLogger(__name__)

#: The most different values of arguments that are no tensors, for one combination of shapes, that are compiled.
_MAX_STATICS = 8


def admit_statics(known: set[Any], statics: Any) -> None:
    """Add a call's values beside tensors to those that have graphs; raises where these change too often."""
    if len(known) >= _MAX_STATICS and statics not in known:
        raise OVBackendError(f"its arguments had {_MAX_STATICS} different values beside tensors, and each is another graph")
    known.add(statics)


class _Form(NamedTuple):
    """A call's numbers, and the call without them."""

    numbers: tuple[float, ...]
    statics: str
    spec: Spec


@dataclass
class _Kind:
    """Calls that differ in their numbers alone."""

    #: The numbers of the first one; from the second on, what such calls have in common.
    first: tuple[float, ...]
    numbers: NumberInputs | None = None
    #: Whether each value needs a graph of its own.
    is_refused: bool = False


class NumberArguments:
    """The numbers among the arguments of one network's calls; each is of a graph, or an input of it."""

    def __init__(self) -> None:
        self._forms: dict[Signature, _Form] = {}
        self._kinds: dict[Hashable, _Kind] = {}
        self._captured: dict[Signature, tuple[NumberInputs, Spec]] = {}
        #: The values of arguments that are no tensors, by the shapes and dtypes of the tensors in the same call.
        self._statics: defaultdict[tuple[TensorSpec, ...], set[str]] = defaultdict(set)

    def clear(self) -> None:
        """Forget all calls."""
        self._forms.clear()
        self._kinds.clear()
        self._captured.clear()
        self._statics.clear()

    def forms(self, call: Call) -> Iterator[Call]:
        """A call with its numbers as inputs, as it may be compiled; the next form is asked for where one cannot be."""
        if (form := self._form(call)).numbers:
            key = call.signature.tensors, form.statics
            if key not in self._kinds:
                remember(self._kinds, key, _Kind(form.numbers))
            kind = self._kinds[key]
            while not kind.is_refused and (kind.numbers is not None or repr(kind.first) != repr(form.numbers)):
                kind.numbers = kind.numbers or NumberInputs(kind.first, form.numbers)
                known = len(kind.numbers.inputs)
                general = self._general(call, form, kind.numbers)
                if general is None:
                    break
                yield general
                kind.is_refused = len(kind.numbers.inputs) == known  # else the trace has found out what it takes

    def answered(self, call: Call, entry_of: Callable[[Call], CompiledEntry]) -> tuple[Call, CompiledEntry] | None:
        """A call with its numbers as inputs, and its graph; None where each number needs a graph of its own."""
        for form in self.forms(call):
            try:
                return form, entry_of(form)
            except (DeviceError, Interrupted):
                raise
            except OVBackendError as error:
                log.debug("A graph is needed for each number: %s", error)
        return None

    def admit(self, signature: Signature) -> None:
        """Take note of a call that needs a graph for its values that are no tensors; raises where these change too often."""
        admit_statics(self._statics[signature.tensors], signature.statics)

    def _form(self, call: Call) -> _Form:
        form = self._forms.get(call.signature)
        if form is None:
            numbers: list[float] = []
            spec = _without_numbers(call.spec, len(call.tensors), numbers)
            _, end = json.JSONDecoder().raw_decode(call.signature.statics)
            form = _Form(tuple(numbers), json.dumps(spec) + call.signature.statics[end:], spec)
            remember(self._forms, call.signature, form)
        return form

    def _general(self, call: Call, form: _Form, numbers: NumberInputs) -> Call | None:
        """The call with its numbers as inputs; None where Python raises as it computes with them."""
        try:
            tensors = numbers.tensors(form.numbers)
        except Exception as error:  # whatever an expression raises: the forward does as well
            pass_on_signals(error)
            return None
        specs = [TensorSpec.of(f"number_{i}", tensor) for i, tensor in enumerate(tensors)]
        signature = Signature((*call.signature.tensors, *specs), form.statics)
        if signature not in self._captured:
            remember(self._captured, signature, (numbers, form.spec))
        return replace(call, signature=signature, tensors=(*call.tensors, *tensors), spec=form.spec)

    def capture(self, capture: Any, module: Any, forward: Any, weights: Any, call: Call, reach: Reach | None) -> Captured:
        """Capture a call by ``capture``, with its numbers as inputs where it is in that form."""
        names = [spec.name for spec in call.signature.tensors]
        if call.signature not in self._captured:
            return capture(module, forward, weights, names, call.tensors, call.arguments, reach)
        numbers, spec = self._captured[call.signature]
        count = len(call.tensors) - len(numbers.inputs)

        def trace(values: Sequence[Any]) -> Captured:
            inputs = [*call.tensors[:count], *(each for each in values if not isinstance(each, (float, int)))]
            plain, described = [each for each in values if isinstance(each, (float, int))], replace(call, spec=spec)
            return capture(module, forward, weights, names[:count], inputs, lambda x: described.arguments([*x, *plain]), reach)

        return numbers.captured(trace, names, reach)


def _without_numbers(spec: Any, count: int, numbers: list[float]) -> Any:
    """A description with its numbers as further tensors, from number ``count`` on, each with its class: 2 is no 2.0."""
    if not isinstance(spec, dict):
        return spec
    if type(spec.get("value")) in (float, int):
        numbers.append(spec["value"])
        return {"tensor": count + len(numbers) - 1, "number": type(spec["value"]).__name__}
    if "list" in spec:
        return {**spec, "list": [_without_numbers(each, count, numbers) for each in spec["list"]]}
    if "dict" in spec:
        return {**spec, "dict": {name: _without_numbers(each, count, numbers) for name, each in spec["dict"].items()}}
    return {name: _without_numbers(each, count, numbers) if name in ("args", "kwargs") else each for name, each in spec.items()}
