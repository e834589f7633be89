"""Calls a pipeline of diffusers with a generation's parameters: from noise, or from a picture."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageOps

from ov_backend.standalone.samplers import make_sampler
from ov_backend.ui.infotext import Parameters


def call_pipeline(
    pipe: Any, own_sampler: Any, parameters: Parameters, picture: Image.Image | None, **overrides: Any
) -> list[Image.Image]:
    """The pictures of one generation, made by the calling thread.

    Args:
        pipe: a text-to-image pipeline of Stable Diffusion 1, 2 or XL; its scheduler is replaced by the sampler.
        own_sampler: the scheduler that the checkpoint came with.
        parameters: prompt, size, steps and the rest; the seed is chosen.
        picture: to start from, in any size, or None.
        overrides: arguments of the pipeline, in place of those made from the parameters.
    """
    import torch

    pipe.scheduler = make_sampler(parameters.sampler, own_sampler)
    arguments: dict[str, Any] = {
        "prompt": parameters.prompt,
        "negative_prompt": parameters.negative_prompt or None,
        "num_inference_steps": parameters.steps,
        "guidance_scale": parameters.guidance,
        "num_images_per_prompt": parameters.batch,
        "generator": torch.Generator().manual_seed(parameters.seed),
        **overrides,
    }
    size = parameters.width, parameters.height
    if picture is None:
        return list(pipe(width=size[0], height=size[1], **arguments).images)
    start = ImageOps.fit(picture.convert("RGB"), size, Image.Resampling.LANCZOS)  # cuts the longer side, distorts nothing
    return list(_image_to_image(pipe)(image=start, strength=parameters.strength, **arguments).images)


def _image_to_image(pipe: Any) -> Any:
    """The pipeline that starts from a picture, with the networks and the scheduler of one that does not."""
    import diffusers

    xl = "XL" in type(pipe).__name__
    name = "StableDiffusionXLImg2ImgPipeline" if xl else "StableDiffusionImg2ImgPipeline"
    options = {"add_watermarker": False} if xl else {"requires_safety_checker": False}
    result = getattr(diffusers, name)(**pipe.components, **options)
    result.set_progress_bar_config(disable=True)
    return result
