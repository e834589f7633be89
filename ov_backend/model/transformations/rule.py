"""A rewrite rule: where it applies, what it puts there, and the fault of the CPU device that it mends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import openvino as ov

from ov_backend.model.transformations.nodes import Constants


@dataclass(frozen=True)
class Rule:
    """A rewrite of one node of some types (of all, without ``kinds``), where the condition says that the fault may occur.

    ``fault`` is what the device does with the node as it is, in one sentence. ``rewrite`` puts another form of the same
    computation in the node's place; it returns the node that other rules may still rewrite, or None.
    """

    fault: str
    kinds: frozenset[str]
    condition: Callable[[ov.Node, Constants], bool]
    rewrite: Callable[[ov.Node, Constants], ov.Node | None]

    @property
    def name(self) -> str:
        """The name of the function that rewrites."""
        return self.rewrite.__name__


def apply_rules(model: ov.Model, rules: Sequence[Rule]) -> Counter[str]:
    """Rewrite a model in place: every node by the rules for its type, in their order; returns how often each has been applied."""
    constants, applied = Constants(model), Counter[str]()
    by_kind: dict[str, list[Rule]] = {}
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind not in by_kind:
            by_kind[kind] = [rule for rule in rules if not rule.kinds or kind in rule.kinds]
        current: ov.Node | None = node
        for rule in by_kind[kind]:
            if current is not None and rule.condition(current, constants):
                applied[rule.name] += 1
                current = rule.rewrite(current, constants)
    return applied
