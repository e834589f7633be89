"""A program: one captured graph as OpenVINO subgraphs, and the operators that stay in PyTorch between them.

Usually there is one subgraph only. A program holds no weights; :meth:`Program.compile` binds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend.core.errors import NothingIn8Bits
from ov_backend.core.fx_utils import output_node, placeholders
from ov_backend.core.settings import Settings
from ov_backend.core.tensors import resolved
from ov_backend.model.conversion.converter import WeightlessModel
from ov_backend.model.runtime.compiled_graph import BlobEntry, CompiledGraph, Timings, bind_and_compile
from ov_backend.model.transformations.convert_precision import WeightBuffer
from ov_backend.model.transformations.quantize import Quantize, Rewrite
from ov_backend.trace.partitioning.partitioner import Coverage


@dataclass(frozen=True)
class Program:
    """A captured graph, converted and without weights.

    ``models`` are the subgraphs, by the name of the submodule of ``outer`` that they replace; ``outer`` is None if one subgraph
    is the whole program. ``slots`` names the weights, in the order of its placeholders; ``key`` is the graph's in the store, ""
    where it is split.
    """

    outer: GraphModule | None
    models: Mapping[str, WeightlessModel]
    slots: tuple[str, ...]
    coverage: Coverage
    key: str = ""

    @classmethod
    def single(cls, model: WeightlessModel, key: str) -> Program:
        """A program of one model."""
        operators = sum(op.get_type_name() not in ("Parameter", "Constant", "Result") for op in model.model.get_ops())
        return cls(None, {"": model}, tuple(spec.name for spec in model.slots), Coverage(operators, {}, {}), key)

    def compile(
        self,
        weights: Mapping[str, torch.Tensor],
        settings: Settings,
        blob_entry: Callable[[str], BlobEntry] | None = None,
        rewrite: Rewrite | None = None,
        bound: Callable[[], object] = bool,
        held: Sequence[WeightBuffer] = (),
    ) -> CompiledProgram:
        """Bind live weights, given by slot name, to every subgraph and compile them.

        ``blob_entry`` gives a subgraph's entry in the blob cache, by its name. For ``rewrite``, ``held`` and ``bound``, which is
        called for each subgraph, see :func:`bind_and_compile`.

        Raises:
            NothingIn8Bits: layers were to be computed in 8 bits, and none is.
        """
        parts = {
            name: bind_and_compile(model, weights, settings, blob_entry and blob_entry(name), rewrite, bound, held)
            for name, model in self.models.items()
        }
        if isinstance(rewrite, Quantize) and not any(part.layers_in_8_bits for part in parts.values()):
            raise NothingIn8Bits("the recipe has no layer that is computed in 8 bits at this size")
        return CompiledProgram(self, parts, weights)


class CompiledProgram:
    """A program with its weights, compiled: ``(inputs) -> flat outputs``, both lists of tensors."""

    def __init__(self, program: Program, parts: Mapping[str, CompiledGraph], weights: Mapping[str, torch.Tensor]) -> None:
        self.parts = dict(parts)
        self.coverage = program.coverage
        #: Whether it reads nothing of the live weights any more.
        self.owns = program.outer is None and all(part.owns for part in parts.values())
        self.timings = sum((part.timings for part in parts.values()), Timings())
        self._run = next(iter(parts.values())) if program.outer is None else _outer(program, self.parts, weights)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once; the caller owns the results."""
        return self._run(inputs)

    def release_memory(self) -> None:
        """Give back what lies between operators; the next call allocates it again.

        Raises:
            RuntimeError: it computes just now.
        """
        for part in self.parts.values():
            part.release_memory()

    def blank(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Zeros of the shapes and dtypes that a call returns; a program with operators in PyTorch is run instead."""
        return self._run.blank(inputs) if isinstance(self._run, CompiledGraph) else self._run(inputs)


def _outer(
    program: Program, parts: Mapping[str, CompiledGraph], weights: Mapping[str, torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    assert program.outer is not None
    gm = GraphModule(_submodules(program, parts), program.outer.graph)
    program.outer.graph.owning_module = program.outer  # else the program, which stays, would hold the compiled subgraphs
    # the memory, not the tensor: its owner may delete that
    live = [resolved(weights[name].detach()) for name in program.slots]
    constants = [getattr(gm, node.target) for node in gm.graph.nodes if node.op == "get_attr"]
    kept = {_memory(constant) for constant in constants if isinstance(constant, torch.Tensor)} - {0}

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            results = list(gm(*live, *map(resolved, inputs)))
            # the caller may write into a result, which a literal of the code is anew at each call
            return [each.clone() if isinstance(each, torch.Tensor) and _memory(each) in kept else each for each in results]

    return run


def _memory(tensor: torch.Tensor) -> int:
    """Where a tensor's storage lies; 0 for one without memory of its own."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


class _Subgraph(torch.nn.Module):
    """A compiled subgraph that replaces its submodule; weights among the arguments are ignored."""

    def __init__(self, part: CompiledGraph, inputs: Sequence[int], single: bool) -> None:
        super().__init__()
        self._part, self._inputs, self._single = part, tuple(inputs), single

    def forward(self, *args: torch.Tensor) -> Any:
        results = self._part([args[i] for i in self._inputs])
        return results[0] if self._single else tuple(results)


def _submodules(program: Program, parts: Mapping[str, CompiledGraph]) -> dict[str, Any]:
    """The attributes of the outer graph by name: constants, compiled subgraphs, and submodules that stay in PyTorch."""
    assert program.outer is not None
    slots = set(placeholders(program.outer)[: len(program.slots)])
    attributes: dict[str, Any] = {}
    for node in program.outer.graph.nodes:
        if node.op == "get_attr":
            attributes[node.target] = getattr(program.outer, node.target)
        if node.op == "call_module":
            original = program.outer.get_submodule(node.target)
            inputs = [i for i, argument in enumerate(node.args) if argument not in slots]
            single = not isinstance(output_node(original).args[0], (list, tuple))
            attributes[node.target] = _Subgraph(parts[node.target], inputs, single) if node.target in parts else original
    return attributes
