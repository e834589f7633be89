"""Calls a pipeline of diffusers with a generation's parameters: from noise, or from a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageOps

from ov_backend.errors import OVBackendError
from ov_backend.standalone.prompts import long_embeddings
from ov_backend.standalone.samplers import make_sampler
from ov_backend.ui.infotext import Parameters


def call_pipeline(
    pipe: Any,
    own_sampler: Any,
    parameters: Parameters,
    picture: Image.Image | None,
    watching: Callable[[Any], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    **overrides: Any,
) -> list[Image.Image]:
    """The pictures of one generation, made by the calling thread.

    Args:
        pipe: a text-to-image pipeline of Stable Diffusion 1, 2 or XL; its scheduler is replaced by the sampler.
        own_sampler: the scheduler that the checkpoint came with.
        parameters: prompt, size, steps and the rest; the seed is chosen.
        picture: to start from, in any size, or None.
        watching: is given the sampler; the pictures are made in its block.
        overrides: arguments of the pipeline, in place of those made from the parameters.

    Raises:
        OVBackendError: a picture is not finite.
    """
    import torch

    pipe.scheduler = make_sampler(parameters.sampler, own_sampler)
    texts = {"prompt": parameters.prompt, "negative_prompt": parameters.negative_prompt or None}
    arguments: dict[str, Any] = {
        **(long_embeddings(pipe, parameters.prompt, parameters.negative_prompt, parameters.guidance > 1) or texts),
        "num_inference_steps": parameters.steps,
        "guidance_scale": parameters.guidance,
        "num_images_per_prompt": parameters.batch,
        "generator": [torch.Generator().manual_seed(parameters.of_picture(i).seed) for i in range(parameters.batch)],
        "output_type": "np",
        **overrides,
    }
    size = parameters.width, parameters.height
    with watching(pipe.scheduler):
        if picture is None:
            return _pictures(pipe, pipe(width=size[0], height=size[1], **arguments).images)
        start = ImageOps.fit(picture.convert("RGB"), size, Image.Resampling.LANCZOS)  # cuts the longer side, distorts nothing
        return _pictures(pipe, _image_to_image(pipe)(image=start, strength=parameters.strength, **arguments).images)


def check_finite(images: Any) -> None:
    """Check that pictures hold neither NaN nor infinity, which would be drawn black without a word.

    Args:
        images: NumPy arrays of floats; each is a picture.

    Raises:
        OVBackendError: one does.
    """
    import numpy as np

    if not np.isfinite(images).all():
        raise OVBackendError("The picture is not finite, it holds NaN; use the precision f32, or another checkpoint or LoRA.")


def _pictures(pipe: Any, images: Any) -> list[Any]:
    """Pillow's pictures of a pipeline's arrays [batch, height, width, 3]; what another ``output_type`` gives stays as it is."""
    import numpy as np

    if not isinstance(images, np.ndarray):
        return list(images)
    check_finite(images)
    return list(pipe.image_processor.numpy_to_pil(images))


def _image_to_image(pipe: Any) -> Any:
    """The pipeline that starts from a picture, with the networks and the scheduler of one that does not."""
    import diffusers

    xl = "XL" in type(pipe).__name__
    name = "StableDiffusionXLImg2ImgPipeline" if xl else "StableDiffusionImg2ImgPipeline"
    options = {"add_watermarker": False} if xl else {"requires_safety_checker": False}
    result = getattr(diffusers, name)(**pipe.components, **options)
    result.set_progress_bar_config(disable=True)
    return result
