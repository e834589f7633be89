"""A generator of pictures, of a small checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from ov_backend.checkpoint import TOKENIZER
from tests.hosts.standalone.checkpoints import write_small_checkpoint


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A PictureGenerator, where diffusers and the project's own vocabulary are there."""
    pytest.importorskip("diffusers")
    if not TOKENIZER.is_dir():
        pytest.skip("the project's own vocabulary is not here")
    from ov_backend.checkpoint import load_pipeline
    from ov_backend.hosts.standalone.generator import PictureGenerator

    folder = tmp_path_factory.mktemp("generator")
    pipe = load_pipeline(write_small_checkpoint(folder))
    return PictureGenerator(pipe, "x", folder / "out", str(folder / "graphs"))
