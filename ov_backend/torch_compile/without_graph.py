"""The functions of which Dynamo makes no graph, so that no backend answers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ov_backend.engine.stats import NetworkStats
from ov_backend.torch_compile.options import parse as parse_options


class WithoutGraph:
    """Functions that Dynamo has given up, and functions whose first operator breaks the graph; by their names and places."""

    def __init__(self) -> None:
        self._given_up: dict[str, NetworkStats] = {}
        #: For every backend with its options one dict, which is emptied by a graph.
        self._broken: list[dict[str, str]] = []

    def give_up(self, where: str, reason: str, options: Mapping[str, Any]) -> bool:
        """Count a function that Dynamo gives up; returns whether the user wants an error where only PyTorch can answer."""
        self._given_up.setdefault(where, NetworkStats()).fall_back(where, _why(reason))
        return parse_options(options).fallback == "raise"

    def note(self, broken: dict[str, str]) -> None:
        """Take note of functions whose first operator breaks the graph, each with the reason; they may change."""
        if not any(each is broken for each in self._broken):
            self._broken.append(broken)

    def stats(self) -> dict[str, dict[str, Any]]:
        """The statistics of each function."""
        found = {where: reason for broken in self._broken for where, reason in broken.items()}
        statistics = {where: NetworkStats(fallbacks=Counter([_why(reason)])) for where, reason in found.items()}
        return {where: {**each.as_dict(), "answered_by": "eager"} for where, each in (statistics | self._given_up).items()}

    def clear(self) -> None:
        """Forget all."""
        self._given_up.clear()
        self._broken.clear()


def _why(reason: str) -> str:
    return f"Dynamo makes no graph of it: {reason}"
