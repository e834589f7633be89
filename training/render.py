"""Renders every concept in every style into one archive of small WebP pictures with alpha."""

from __future__ import annotations

import argparse
import io
import json
import logging
import zipfile
from pathlib import Path

from PIL import Image, ImageOps
from tqdm import tqdm

from . import catalog
from .fetch import PACKAGES, fetch
from .paths import data_dir

log = logging.getLogger(__name__)
STYLES = ("3d", "flat", "line art")
SIZE = 256


def from_svg(icon_set: dict, name: str) -> Image.Image:
    """One icon of an Iconify set as an RGBA picture; ``currentColor`` is a dark grey."""
    import resvg_py

    icon = icon_set["icons"][name]
    width, height = (icon.get(side, icon_set.get(side, 32)) for side in ("width", "height"))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" viewBox="0 0 {width} {height}" '
        f'color="#222222">{icon["body"]}</svg>'
    )
    return squared(Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg)))))


def squared(picture: Image.Image) -> Image.Image:
    """The picture as RGBA, centred in a square of the standard size."""
    return ImageOps.pad(picture.convert("RGBA"), (SIZE, SIZE), color=(0, 0, 0, 0))


def encoded(picture: Image.Image, quality: int = 92) -> bytes:
    """A picture as WebP."""
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=quality, method=4)
    return stream.getvalue()


def prepare(folder: Path, limit: int | None = None) -> None:
    """Write concepts.json and sprites.zip (members ``<style>/<number>.webp``) to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    folders = {key: fetch(key) for key in PACKAGES}
    concepts = catalog.build(folders)[:limit]
    icon_sets = {style: json.loads((folders[style] / "icons.json").read_text()) for style in STYLES[1:]}
    with zipfile.ZipFile(folder / "sprites.zip", "w", zipfile.ZIP_STORED) as archive:
        for number, concept in enumerate(tqdm(concepts, desc="render")):
            solid = folders["3d"] / "assets" / f"{concept.codepoints}.webp"
            picture = Image.open(solid)
            archive.writestr(
                f"3d/{number:04}.webp", solid.read_bytes() if picture.size == (SIZE, SIZE) else encoded(squared(picture))
            )
            for style, icon_set in icon_sets.items():
                archive.writestr(f"{style}/{number:04}.webp", encoded(from_svg(icon_set, concept.icon)))
    (folder / "concepts.json").write_text(json.dumps([concept.asdict() for concept in concepts], indent=1))
    log.info("%d concepts in %d styles written to %s", len(concepts), len(STYLES), folder)


def main() -> None:
    """Parse the command line and render."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="only the first N concepts, for a test")
    prepare(data_dir(), parser.parse_args().limit)


if __name__ == "__main__":
    main()
