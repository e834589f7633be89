"""Prepares in the background, before anybody presses Generate, the networks that the last generation with such a model called."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ov_backend.cache.store import GraphStore
from ov_backend.engine.history import History, RememberedCall
from ov_backend.engine.marker import Marker
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

log = logging.getLogger(__name__)

STOPPED = (
    "Networks are not prepared at the start: the last process ended while that was done. To try again, start once with"
    " --no-prepare and then without it."
)


class Likely(NamedTuple):
    """The request that is expected: size, batch and choices of the last generation, and what it has called."""

    size: str
    batch: int
    choices: Choices
    calls: Sequence[RememberedCall]


def request_of(parameters: Parameters, choices: Choices, from_picture: bool) -> str:
    """What decides with which shapes networks are called, and what runs where, as JSON; no prompts."""
    fields = {
        "size": f"{parameters.width}x{parameters.height}",
        "batch": parameters.batch,
        "guided": parameters.guidance > 1,
        "from_picture": from_picture,
        "choices": choices.as_infotext(),
    }
    return json.dumps(fields, sort_keys=True)


def likely(store: GraphStore, model: str) -> Likely | None:
    """What the last generation with a kind of model was; None if there was none."""
    runs = History(store).runs(model)
    if not runs:
        return None
    fields = json.loads(runs[0].request)
    return Likely(str(fields["size"]), int(fields["batch"]), Choices.from_infotext(fields["choices"]), runs[0].calls)


def prepare_in_background(prepare: Callable[[Marker], None], store: GraphStore | None, enabled: bool) -> threading.Thread | None:
    """Call ``prepare(marker)`` in a thread of its own; its failures are logged for debugging.

    Args:
        prepare: prepares the networks; it is given the mark of this process.
        store: the graph store, or None.
        enabled: if not, marks of earlier processes are removed, and nothing is prepared.

    Returns:
        the thread, or None where nothing is prepared.
    """
    if store is None or store.problem():
        return None
    marker = Marker(store.folder)
    if not enabled:
        marker.forget()
        return None

    def run() -> None:
        try:
            prepare(marker)
        except Exception:  # nobody has asked for it
            log.debug("Nothing was prepared before a generation", exc_info=True)
        finally:
            marker.remove()

    thread = threading.Thread(target=run, name="openvino-ready", daemon=True)
    thread.start()
    return thread
