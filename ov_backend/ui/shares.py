"""How the seconds of one generation divide: each network's computing, preparing, and everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it loads OpenVINO
    from ov_backend.engine.engine import Engine

#: The stage of a network's statistics that prepares it and that no stage of the status covers.
_UNCOVERED = "load"


class Ledger:
    """The seconds that networks have spent since a generation began.

    In the middle of a generation a network may be released, and another one may take its name: a checkpoint is loaded, or a
    refiner. So statistics are followed, not names. Networks are not held, because that would keep a model's weights alive.
    """

    def __init__(self, engine: Engine | None) -> None:
        #: Name, statistics and the seconds by stage when the generation began, by the statistics' id.
        self._followed: dict[int, tuple[str, Any, dict[str, float]]] = {}
        self.follow(engine, is_new=False)

    def follow(self, engine: Engine | None, is_new: bool = True) -> None:
        """Follow the networks that an engine has now; what a new one has spent so far counts too."""
        for name, network in list(engine.networks.items()) if engine is not None else ():
            statistics = network.statistics
            if id(statistics) not in self._followed:
                self._followed[id(statistics)] = name, statistics, {} if is_new else dict(statistics.seconds)

    def spent(self, stage: str) -> dict[str, float]:
        """Seconds of one stage by the name of the network."""
        result: dict[str, float] = {}
        for name, statistics, before in self._followed.values():
            seconds = statistics.seconds.get(stage, 0.0) - before.get(stage, 0.0)
            result[name] = result.get(name, 0.0) + max(0.0, seconds)
        return result

    def computed(self) -> float:
        """Seconds that all networks have computed."""
        return sum(self.spent("infer").values())

    def shares(self, prepared: float, total: float) -> dict[str, float]:
        """How ``total`` seconds divide, as shares from 0 to 1 that sum to 1.

        Args:
            prepared: seconds in which a stage of preparing was open.
            total: the generation's seconds.

        Returns:
            the share of each network's calls, of "preparing" them, and of all "other"; none where no time has passed.
        """
        if total <= 0:
            return {}
        computed = self.spent("infer")
        scale = 1.0 / max(total, sum(computed.values()))  # two threads may compute at once
        result = {name: round(seconds * scale, 4) for name, seconds in computed.items()}
        prepared += sum(self.spent(_UNCOVERED).values())
        rest = max(0.0, 1.0 - sum(result.values()))
        result["preparing"] = round(min(prepared * scale, rest), 4)  # a stage in the background takes no time from a step
        result["other"] = round(max(0.0, 1.0 - sum(result.values())), 4)
        return result
