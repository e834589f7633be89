"""The standalone page compares int8 with the device's own precision, or says why it cannot."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from ov_backend.checkpoint import TOKENIZER, load_pipeline
from ov_backend.core.package_files import TRAINED
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.int8 import recipe
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.jobs import JobControl, Unavailable, compare_int8
from ov_backend.ui.snapshot import Job
from tests.helpers.extent import only_in_full
from tests.helpers.layers_in_8_bits import needs_vnni
from tests.hosts.standalone.checkpoints import write_small_checkpoint

pytestmark = [needs_vnni, pytest.mark.skipif(not TOKENIZER.is_dir(), reason="the project's own vocabulary is not here")]
CHOICES = Choices(text_encoder=False, vae=False)


def compared(generator: PictureGenerator) -> tuple[Job, dict[str, bytes]]:
    job = Job("compare", total=2)
    comparison = compare_int8(generator, JobControl(job, threading.Event()), generator.last_request(), CHOICES)
    job.result = comparison.as_dict()
    return job, comparison.pictures()


@only_in_full
def test_both_pictures_are_made_and_int8_is_calibrated_before(tmp_path: Path) -> None:
    generator = PictureGenerator(load_pipeline(TRAINED), "fluent-sd", tmp_path, str(tmp_path / "graphs"))
    generator.generate(Parameters("a fox in the snow", steps=8, width=128, height=128, seed=1), CHOICES)
    job, pictures = compared(generator)
    assert list(job.result["sides"]) == list(pictures) == ["own", "int8"]
    assert 20 < job.result["psnr_db"] < 60, "it is the same picture, and not the same precision"
    int8 = generator.status.snapshot()["networks"]["unet"]["int8"]
    assert int8["state"] == "on"
    assert int8["memory"].endswith("are both in memory: their pictures can be compared")


def test_where_int8_is_not_used_the_job_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "MAX_ERROR", 0.001)
    generator = PictureGenerator(load_pipeline(write_small_checkpoint(tmp_path)), "x", tmp_path, str(tmp_path / "graphs"))
    generator.generate(Parameters("a cat", steps=2, width=64, height=64, seed=4), CHOICES)
    with pytest.raises(Unavailable, match=r"There is nothing to compare: int8 is not used: .* off by"):
        compared(generator)
