"""Contact sheets: pages of the pictures that are there, made again where they are lost or old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("diffusers")

from ov_backend.batch import contact_sheet
from tests.batch.conftest import JOB
from tests.batch.standin import StandIn


def test_contact_sheets_show_the_pictures_that_are_there(run: Any, tmp_path: Path) -> None:
    (sheet,) = run(StandIn(), [{"prompt": "ж" * 300, "seed": list(range(7))}]).sheets
    with Image.open(sheet) as page:
        width, height = page.size
        assert page.getpixel((100, 100)) != (255, 255, 255)
    assert width > height, "seven pictures are two rows of thumbnails"
    many = run(StandIn(), [{"prompt": "x", "seed": list(range(31))}]).sheets
    assert [path.name for path in many] == ["contact-001.jpg", "contact-002.jpg"]
    assert [path.name for path in run(StandIn(), [{"prompt": "x", "seed": 1}]).sheets] == ["contact-001.jpg"]
    assert not (tmp_path / "out" / "contact-002.jpg").exists()
    assert run(StandIn(), JOB, contact_sheet=False).sheets == ()


def test_contact_sheets_of_a_killed_run_and_lost_pages_are_made_again(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheet = tmp_path / "out" / "contact-001.jpg"
    run(StandIn(), JOB[:2])
    before = sheet.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(contact_sheet, "write_sheets", killed)
        with pytest.raises(KeyboardInterrupt):
            run(StandIn())
    result = run(StandIn())
    assert (result.made, result.sheets) == (0, (sheet,))
    assert sheet.read_bytes() != before
    many = [{"prompt": "x", "size": "64x64", "seed": list(range(31))}]
    run(StandIn(), many)
    (tmp_path / "out" / "contact-002.jpg").unlink()
    assert len(run(StandIn(), many).sheets) == 2
    assert run(StandIn(), [{**many[0], "seed": [0]}]).sheets == (sheet,)
    assert not (tmp_path / "out" / "contact-002.jpg").exists()


def test_a_contact_sheet_has_no_picture_of_other_values(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[int]] = []

    def draw(tiles: list[Any], original: Any = contact_sheet._draw) -> Any:
        shown.append([row.number for _, row, _ in tiles])
        return original(tiles)

    monkeypatch.setattr(contact_sheet, "_draw", draw)
    run(StandIn(), JOB[:2])
    run(StandIn(failures={1: 2}), [{**JOB[0], "steps": 5}, *JOB[1:3]])
    assert shown == [[1, 2], [2, 3]]
