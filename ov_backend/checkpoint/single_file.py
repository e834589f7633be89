"""Checkpoints of other kinds (inpainting, SD3, Flux), which diffusers reads with the configuration of their pipeline beside them.

The folder that is named like the file (``model/`` for ``model.safetensors``) holds ``model_index.json`` and the folders of the
pipeline's parts as diffusers writes them, without weights. Nothing is downloaded, and no code of the folder is run.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ov_backend.checkpoint.companion_files import MAX_JSON_BYTES, parse_json, read_text
from ov_backend.checkpoint.header import given_path, read_header, read_shapes
from ov_backend.core.errors import CheckpointError, first_line

#: What :func:`load_pipeline` reads from the file alone.
_OWN = ("StableDiffusionPipeline", "StableDiffusionXLPipeline")


def load_any_pipeline(path: Path) -> Any:
    """As :func:`load_pipeline`; a checkpoint of another kind is read by diffusers, if its configuration is beside it.

    Returns the pipeline, in float32, in evaluation mode; of the class that ``model_index.json`` names, or as ``load_pipeline``.

    Raises:
        CheckpointError: the file cannot be read, or the configuration does not fit it.
    """
    from ov_backend.checkpoint.loader import load_pipeline

    path = given_path(path)
    index = _index_beside(path)
    return load_pipeline(path) if index is None else _by_diffusers(path, path.with_suffix(""), index)


def check_any_checkpoint(path: Path) -> None:
    """Check the header of a file that :func:`load_any_pipeline` may read; needs neither PyTorch nor diffusers.

    Raises:
        CheckpointError: it cannot be read.
    """
    read_header(path) if _index_beside(path) is None else read_shapes(path)


def _index_beside(path: Path) -> dict[str, Any] | None:
    """The index beside a file, unless the file is one that is read without."""
    file = path.with_suffix("") / "model_index.json" if path.name else path
    if not path.name or not file.is_file():
        return None
    index = _read_index(file)
    return None if index["_class_name"] in _OWN else index


def _read_index(path: Path) -> dict[str, Any]:
    """The content of a ``model_index.json``, whose parts are all of diffusers and transformers."""
    try:
        index: dict[str, Any] = parse_json(read_text(path, MAX_JSON_BYTES))
        libraries = {value[0] for value in index.values() if isinstance(value, list)}
        is_known = isinstance(index["_class_name"], str) and libraries <= {"diffusers", "transformers", None}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no index of a diffusers pipeline; correct or remove it.") from error
    if not is_known:
        raise CheckpointError(f"{path} names parts that are neither diffusers' nor transformers'; correct or remove it.")
    return index


def _by_diffusers(path: Path, folder: Path, index: dict[str, Any]) -> Any:
    import diffusers
    import torch

    read_shapes(path)  # refuses pickles and damaged files
    name = index["_class_name"]
    pipeline = getattr(diffusers, name, None)
    is_pipeline = inspect.isclass(pipeline) and issubclass(pipeline, diffusers.DiffusionPipeline)
    read = getattr(pipeline, "from_single_file", None) if is_pipeline else None
    if read is None:
        what = "which is no pipeline that diffusers can read from a file"
        raise CheckpointError(f"{folder / 'model_index.json'} names {name[:100]!r}, {what}; correct or remove it.")
    absent = {part: None for part, value in index.items() if isinstance(value, list) and value[0] is None}
    try:
        pipe = read(str(path), config=str(folder), local_files_only=True, **absent)
        pipe.to(torch.float32)
    except Exception as error:  # diffusers and transformers raise what they like
        reason = f"diffusers cannot read it as a {name} with the configuration in {folder}: {first_line(error)[:300]}"
        raise CheckpointError(f"{path.name} cannot be used ({reason}); give the configuration that belongs to it.") from error
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval().requires_grad_(False)
    return pipe
