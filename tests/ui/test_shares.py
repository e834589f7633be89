"""How the seconds of a generation divide, also when networks take each other's names or compute at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ov_backend.engine.stats import NetworkStats
from ov_backend.ui.shares import Ledger


def engine_with(**infer: float) -> SimpleNamespace:
    engine = SimpleNamespace(networks={})
    for name, seconds in infer.items():
        put(engine, name, infer=seconds)
    return engine


def put(engine: SimpleNamespace, name: str, **seconds: float) -> None:
    """A new network under a name."""
    statistics = NetworkStats()
    statistics.seconds.update(seconds)
    engine.networks[name] = SimpleNamespace(statistics=statistics)


def test_only_what_is_spent_since_the_beginning_counts() -> None:
    engine = engine_with(unet=100.0)
    ledger = Ledger(engine)
    engine.networks["unet"].statistics.seconds["infer"] += 6
    put(engine, "vae_decode", infer=1.0)
    ledger.follow(engine)
    assert ledger.shares(2.0, 10.0) == {"unet": 0.6, "vae_decode": 0.1, "preparing": 0.2, "other": 0.1}


def test_a_network_that_takes_another_s_name_in_mid_run_adds_to_its_share() -> None:
    engine = engine_with(unet=100.0)
    ledger = Ledger(engine)
    engine.networks["unet"].statistics.seconds["infer"] += 3
    put(engine, "unet", infer=5.0)  # another checkpoint was loaded; the first network is released
    ledger.follow(engine)
    assert ledger.shares(0.0, 10.0) == {"unet": 0.8, "preparing": 0.0, "other": 0.2}


@pytest.mark.parametrize("computed,prepared,total", [(5, 50, 10), (30, 5, 10), (0, 0, 10), (1 / 3, 1 / 7, 1), (10, 3.6, 10)])
def test_shares_sum_to_one(computed: float, prepared: float, total: float) -> None:
    engine = engine_with(unet=0.0, vae_decode=0.0)
    ledger = Ledger(engine)
    engine.networks["unet"].statistics.seconds["infer"] = computed
    engine.networks["vae_decode"].statistics.seconds["infer"] = computed / 3
    shares = ledger.shares(prepared, total)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)
    assert all(0 <= share <= 1 for share in shares.values())


def test_loading_a_stored_graph_is_preparing() -> None:
    engine = engine_with()
    ledger = Ledger(engine)
    put(engine, "unet", infer=2.0, load=1.0, capture=50.0)  # capturing is a stage, and given as prepared
    ledger.follow(engine)
    assert ledger.shares(4.0, 10.0)["preparing"] == pytest.approx(0.5)


def test_no_time_has_no_shares() -> None:
    assert Ledger(None).shares(0.0, 0.0) == {}
