"""Calls a pipeline of diffusers with a generation's parameters: from noise, or from a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageFilter, ImageOps

from ov_backend.core.errors import OVBackendError
from ov_backend.hosts.standalone.prompts import long_embeddings
from ov_backend.hosts.standalone.samplers import make_sampler
from ov_backend.ui.infotext import MASK_BLUR, Parameters


@dataclass(frozen=True)
class Masked:
    """A picture of which a part is made anew: where the mask, a grey picture of the same size, is not black."""

    picture: Image.Image
    mask: Image.Image


#: What a picture starts from: nothing, a picture, a part of one, or as many pictures as are made.
Start = Image.Image | Masked | Sequence[Image.Image] | None


def call_pipeline(
    pipe: Any,
    own_sampler: Any,
    parameters: Parameters,
    picture: Start,
    watching: Callable[[Any], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    **overrides: Any,
) -> list[Image.Image]:
    """The pictures of one generation, made by the calling thread.

    Args:
        pipe: a text-to-image pipeline of Stable Diffusion 1, 2 or XL; its scheduler is replaced by the sampler.
        own_sampler: the scheduler that the checkpoint came with.
        parameters: prompt, size, steps and the rest; the seed is chosen.
        picture: to start from, in any size.
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
        arguments["strength"] = parameters.strength
        if isinstance(picture, Masked):
            return _inpainted(pipe, _fitted(picture.picture, size), _fitted(picture.mask, size, "L"), arguments)
        start = _fitted(picture, size) if isinstance(picture, Image.Image) else [_fitted(each, size) for each in picture]
        return _pictures(pipe, _other(pipe, "Img2Img")(image=start, **arguments).images)


def decoded(pipe: Any, latents: Any) -> list[Any]:
    """Pillow's pictures of latents, by the pipeline's VAE."""
    import torch

    vae = pipe.vae
    with torch.inference_mode():
        pictures = vae.decode(latents.to(vae.dtype) / vae.config.scaling_factor).sample
    return list(pipe.image_processor.postprocess(pictures, output_type="pil"))


def check_finite(images: Any) -> None:
    """Check that pictures hold neither NaN nor infinity, which would be drawn black without a word.

    Args:
        images: NumPy arrays of floats; each is a picture.

    Raises:
        OVBackendError: one does.
    """
    import numpy as np

    if not np.isfinite(images).all():
        advice = "use another checkpoint or LoRA, or the precision f32 if it was another"
        raise OVBackendError(f"The picture is not finite, it holds NaN; {advice}.")


def _pictures(pipe: Any, images: Any) -> list[Any]:
    """Pillow's pictures of a pipeline's arrays [batch, height, width, 3]; what another ``output_type`` gives stays as it is."""
    import numpy as np

    if not isinstance(images, np.ndarray):
        return list(images)
    check_finite(images)
    return list(pipe.image_processor.numpy_to_pil(images))


def _fitted(picture: Image.Image, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """A picture in a size: what is too long is cut, and nothing is distorted."""
    return ImageOps.fit(picture.convert(mode), size, Image.Resampling.LANCZOS)


def _inpainted(pipe: Any, start: Image.Image, mask: Image.Image, arguments: dict[str, Any]) -> list[Any]:
    """A picture whose part under a mask is made anew; beyond the mask's blurred edge, no pixel changes."""
    sharp = mask.point(lambda value: 255 * (value > 0))
    size = {"width": start.width, "height": start.height}
    made = _pictures(pipe, _other(pipe, "Inpaint")(image=start, mask_image=sharp, **size, **arguments).images)
    soft = sharp.filter(ImageFilter.GaussianBlur(MASK_BLUR))
    return [Image.composite(each, start, soft) if isinstance(each, Image.Image) else each for each in made]


def _other(pipe: Any, kind: str) -> Any:
    """The pipeline of another kind, "Img2Img" or "Inpaint", with the networks and the scheduler of a text-to-image one."""
    import diffusers

    xl = "XL" in type(pipe).__name__
    options = {"add_watermarker": False} if xl else {"requires_safety_checker": False}
    result = getattr(diffusers, f"StableDiffusion{'XL' if xl else ''}{kind}Pipeline")(**pipe.components, **options)
    result.set_progress_bar_config(disable=True)
    return result
