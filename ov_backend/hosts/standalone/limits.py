"""Which parameters a picture can be generated with."""

from __future__ import annotations

from ov_backend.core.errors import SettingsError
from ov_backend.hosts.standalone.prompt_syntax import check_syntax
from ov_backend.hosts.standalone.samplers import check_sampler
from ov_backend.pipelines.sizes import MAX_BATCH, check_batch, check_guidance, check_size
from ov_backend.ui.infotext import Parameters

_MAX_STEPS = 1000
_MAX_HIRES = 4
_MAX_PROMPT = 10000


def check(parameters: Parameters) -> None:
    """Check that pictures can be generated with these parameters.

    Raises:
        SettingsError: they cannot; the message says what is expected.
    """
    for name, value, low, high in (
        ("Steps", parameters.steps, 1, _MAX_STEPS),
        ("Batch size", parameters.batch, 1, MAX_BATCH),
        ("The seed", parameters.seed, -1, (1 << 63) - 1),
    ):
        if not low <= value <= high:
            raise SettingsError(f"{name} is {value}; it must be from {low} to {high}.")
    for name, text in (("The prompt", parameters.prompt), ("The negative prompt", parameters.negative_prompt)):
        if len(text) > _MAX_PROMPT:
            raise SettingsError(f"{name} has {len(text)} characters; at most {_MAX_PROMPT} are read, so make it shorter.")
    check_syntax(parameters.prompt, parameters.negative_prompt)
    check_guidance(parameters.guidance)
    check_sampler(parameters.sampler, parameters.steps)
    check_size(parameters.width, parameters.height)
    if not 1 <= parameters.hires <= _MAX_HIRES:
        raise SettingsError(f"Hires fix is by {parameters.hires:g}; it must be from 1 (none) to {_MAX_HIRES}.")
    check_batch(*check_size(*parameters.final_size), parameters.batch)
    if parameters.strength is not None and not 0 < parameters.strength <= 1:
        raise SettingsError(f"Denoising strength is {parameters.strength}; it must be above 0 and at most 1.")
    if parameters.strength is not None and int(parameters.steps * parameters.strength) < 1:  # as diffusers counts them
        what = f"Denoising strength {parameters.strength:g} leaves none of {parameters.steps} steps"
        raise SettingsError(f"{what}; give a higher strength, or more steps.")
