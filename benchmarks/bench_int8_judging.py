"""How alike pictures in int8 are, by pictures and recipes that had no part in choosing its rules.

    python -m benchmarks int8_judging [--out FOLDER] [--json] [--tiny]

The pictures of ``int8_pictures.JUDGING`` by the demo checkpoint in f32, in the device's own precision, and in int8 with eight
recipes. Each recipe is calibrated by a first picture of its own and draws every second picture. PSNR is against f32. It is
asserted that every recipe was used, and that no picture in the own precision is another one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.command import parser_of, show, write_line
from benchmarks.int8_pictures import FIRST, JUDGING, Picture, demo_pipeline, draw
from ov_backend import Settings, accelerate
from ov_backend.core import devices
from ov_backend.ui.comparison import psnr

RECIPES = 8
EQUAL_DB = 99.0
#: Another seed's picture is below.
OTHER_DB = 15.0


def main() -> None:
    """Measure and print."""
    options = parser_of(__doc__, "four pictures and two recipes").parse_args()
    pictures, firsts = (JUDGING[:4], FIRST[:2]) if options.tiny else (JUDGING, FIRST[:RECIPES])
    pipe = demo_pipeline()
    expected = draw_all(pipe, pictures, "f32")
    own = likeness(draw_all(pipe, pictures, "auto"), expected)
    assert min(own) > OTHER_DB, f"the worst picture has {min(own):.1f} dB"
    int8 = {}
    for number, first in enumerate(firsts):
        drawn = draw_all(pipe, pictures[number % 2 :: 2], "int8", first)
        int8[first.prompt] = likeness(drawn, expected[number % 2 :: 2])
    show({"own": devices.resolved_precision(Settings()), "own_db": own, "int8_db": int8}, options, report)


def draw_all(pipe: Any, pictures: Sequence[Picture], precision: str, first: Picture | None = None) -> list[np.ndarray]:
    """Pictures in one precision; the first picture calibrates, and is not one of them."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(cache_dir=folder, fallback="raise", precision=precision)
        with accelerate(pipe, settings) as accelerated:
            if first is not None:
                draw(pipe, first)
                draw(pipe, replace(first, steps=1))
            drawn = [draw(pipe, picture) for picture in pictures]
            stated = accelerated.stats()["unet"]["int8"]
    assert first is None or stated["state"] == "on", stated
    return drawn


def likeness(drawn: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """PSNR in dB of each picture."""
    return [min(EQUAL_DB, psnr(*map(Image.fromarray, pair))) for pair in zip(drawn, expected)]


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the medians and the worst pictures."""
    for name, values in ({results["own"]: results["own_db"]} | results["int8_db"]).items():
        write_line(f"{name:44} median {statistics.median(values):5.1f} dB, worst {min(values):5.1f}, {len(values)} pictures")


if __name__ == "__main__":
    main()
