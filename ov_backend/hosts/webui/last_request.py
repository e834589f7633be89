"""What the last generation was asked for, so that a comparison can make its first picture once more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

#: Attributes of the WebUI's processing objects that a picture depends on.
_FIELDS = (
    *("prompt", "negative_prompt", "seed", "subseed", "subseed_strength", "seed_resize_from_h", "seed_resize_from_w"),
    *("sampler_name", "scheduler", "steps", "cfg_scale", "width", "height", "tiling", "denoising_strength"),
    *("eta", "s_min_uncond", "s_churn", "s_tmin", "s_tmax", "s_noise", "refiner_checkpoint", "refiner_switch_at"),
    *("enable_hr", "hr_scale", "hr_upscaler", "hr_second_pass_steps", "hr_resize_x", "hr_resize_y", "hr_checkpoint_name"),
    *("hr_sampler_name", "hr_scheduler", "hr_prompt", "hr_negative_prompt"),
    *("distilled_cfg_scale", "hr_cfg", "hr_distilled_cfg", "hr_additional_modules"),  # of Forge, one also of reForge
    *("init_images", "resize_mode", "mask", "mask_blur_x", "mask_blur_y", "mask_round", "initial_noise_multiplier"),
    *("inpainting_fill", "inpaint_full_res", "inpaint_full_res_padding", "inpainting_mask_invert"),
)
#: What the WebUI decides while it generates, by the field that it decides: the first picture's is taken.
_DECIDED = {
    "prompt": "all_prompts",
    "negative_prompt": "all_negative_prompts",
    "seed": "all_seeds",
    "subseed": "all_subseeds",
}


@dataclass(frozen=True)
class LastRequest:
    """The class of a processing object, and the values that the first picture depends on."""

    processing_class: type[Any]
    values: dict[str, Any]

    @classmethod
    def of(cls, p: Any) -> LastRequest:
        """Read it from a processing object whose pictures are made."""
        values = {name: getattr(p, name) for name in _FIELDS if hasattr(p, name)}
        for name, decided in _DECIDED.items():
            if getattr(p, decided, None):
                values[name] = getattr(p, decided)[0]
        if values.get("init_images"):
            values["init_images"] = values["init_images"][:1]
        if getattr(p, "image_mask", None) is not None:  # the WebUI moves the mask there
            values["mask"] = p.image_mask
        return cls(type(p), values)

    def with_seed(self, more: int) -> LastRequest:
        """The same with a seed that is so much larger."""
        return replace(self, values={**self.values, "seed": (int(self.values["seed"]) + more) % (1 << 32)})

    def warm_up(self) -> LastRequest:
        """The same in one step; the WebUI makes more of it where it starts from a picture."""
        return replace(self, values={**self.values, "steps": 1})

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, of the first pass."""
        return self.values["width"], self.values["height"]
