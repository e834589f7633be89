"""The samplers of the page, of job files and of the commands that draw, by the WebUI's names: those of diffusers that draw a
picture from a common checkpoint.

Of diffusers' others, LMS needs scipy and DPM++ SDE torchsde, which this project does not install; PNDM's picture of the demo
checkpoint, which predicts the velocity, is another one than all others'; the rest is for other kinds of models.
"""

from __future__ import annotations

from typing import Any

from ov_backend.core.errors import SettingsError, short_repr

#: Name, class in diffusers, and what differs from the checkpoint's own configuration.
_SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "DPM++ 2M": ("DPMSolverMultistepScheduler", {}),
    "DPM++ 2M Karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "DPM++ 2M SDE": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "DPM++ 2S": ("DPMSolverSinglestepScheduler", {"lower_order_final": True}),
    "Euler": ("EulerDiscreteScheduler", {}),
    "Euler a": ("EulerAncestralDiscreteScheduler", {}),
    "Heun": ("HeunDiscreteScheduler", {}),
    "DPM2": ("KDPM2DiscreteScheduler", {}),
    "DPM2 a": ("KDPM2AncestralDiscreteScheduler", {}),
    "DDIM": ("DDIMScheduler", {}),
    "DDPM": ("DDPMScheduler", {}),
    "DEIS": ("DEISMultistepScheduler", {}),
    "SA-Solver": ("SASolverScheduler", {}),
    "UniPC": ("UniPCMultistepScheduler", {}),
    "LCM": ("LCMScheduler", {}),
    "TCD": ("TCDScheduler", {}),
}
NAMES = (*_SAMPLERS,)
DEFAULT = "DPM++ 2M"

#: These are for models that need few steps, and take them out of this many.
_DISTILLED, _DISTILLED_STEPS = ("LCM", "TCD"), 50


def sampler_named(name: str) -> str:
    """The sampler of a name in any case; "" if there is none."""
    return next((each for each in NAMES if each.lower() == name.strip().lower()), "")


def check_sampler(name: str, steps: int, timesteps: int) -> None:
    """Check a sampler's name, "" for the checkpoint's own, and its number of steps, for a checkpoint of so many timesteps.

    Raises:
        SettingsError: there is no such sampler, or it cannot take so many steps.
    """
    if name and name not in _SAMPLERS:
        raise SettingsError(f"The sampler is {short_repr(name)}; it must be one of {', '.join(NAMES)}.")
    if name in _DISTILLED and steps > _DISTILLED_STEPS:
        raise SettingsError(
            f"{name} takes at most {_DISTILLED_STEPS} steps, usually 4 to 8; {steps} were asked for, so give fewer."
        )
    needed = _DISTILLED_STEPS if name in _DISTILLED else steps + 1  # some samplers count from 1, and would run past the end
    if timesteps < needed:
        what = f"Steps is {steps}, for which {needed} timesteps are needed, and the checkpoint has {timesteps}"
        raise SettingsError(f"{what}; give fewer steps, or take another sampler.")


def make_sampler(name: str, own: Any) -> Any:
    """A fresh scheduler with the configuration of the checkpoint's ``own``, which is returned for the name ""."""
    if not name:
        return own
    import diffusers

    class_name, changes = _SAMPLERS[name]
    return getattr(diffusers, class_name).from_config(own.config, **changes)
