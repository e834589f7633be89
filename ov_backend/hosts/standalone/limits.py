"""Which parameters a picture can be generated with.

What the WebUI reads in a prompt and this project does not is refused, because as words it would mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.hosts.standalone.lora_tags import plain
from ov_backend.hosts.standalone.prompt_weights import weighted
from ov_backend.hosts.standalone.samplers import check_sampler
from ov_backend.pipelines.sizes import MAX_BATCH, check_batch, check_guidance, check_size
from ov_backend.ui.infotext import Parameters

#: A square bracket, or a backslash with the character that it makes one of the text.
_MARKS = re.compile(r"(\\.|[\[\]])", re.DOTALL)
#: What stands in square brackets whose words come and go while the picture is made: ``[a:b:0.5]``, or ``[a|b]``.
_CHANGES = re.compile(r".*(?:\||:\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*$)", re.DOTALL)
_TAG = re.compile(r"<\w+:[^<>]*>")
_AND = re.compile(r"\bAND\b")


def check_syntax(prompt: str, negative: str = "") -> None:
    """Check that two prompts hold nothing that only the WebUI reads.

    Raises:
        SettingsError: one does; the message says what to do.
    """
    if found := _TAG.search(plain(prompt)):
        raise SettingsError(f"The prompt has {short_repr(found[0])}; only <lora:name:0.8> is read of such tags, so remove it.")
    if found := _TAG.search(negative):
        raise SettingsError(f"The negative prompt has {short_repr(found[0])}; write it into the prompt, or remove it.")
    for name, text in (("The prompt", plain(prompt)), ("The negative prompt", negative)):
        if _AND.search(text):
            raise SettingsError(f"{name} has AND, by which the WebUI joins prompts; that is not done here, so write 'and'.")
        for inside in filter(_CHANGES.match, _brackets(text)):
            what = "whose words come and go from step to step in the WebUI; that is not done here"
            advice = r"leave one of them, or write \[ and \] for brackets of the text"
            raise SettingsError(f"{name} has {short_repr(f'[{inside}]', 60)}, {what}, so {advice}.")


def _brackets(text: str) -> Iterator[str]:
    """What stands in each pair of square brackets, the innermost first, without the pairs in it."""
    opened = [""]
    for part in _MARKS.split(text):
        if part == "[":
            opened.append("")
        elif part == "]" and len(opened) > 1:
            yield opened.pop()
        elif not part.startswith("\\"):
            opened[-1] += part


_MAX_STEPS = 1000
_MAX_HIRES = 4
_MAX_PROMPT = 10000
_MAX_WEIGHT = 100
#: A null character, or half of a surrogate pair: bytes of the command line that are not UTF-8 are such halves.
_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")


def check(parameters: Parameters, timesteps: int = _MAX_STEPS + 1) -> None:
    """Check that pictures can be generated with these parameters, by a checkpoint of so many timesteps.

    Raises:
        SettingsError: they cannot; the message says what is expected.
    """
    for name, value, low, high in (
        ("Steps", parameters.steps, 1, _MAX_STEPS),
        ("Batch size", parameters.batch, 1, MAX_BATCH),
        ("The seed", parameters.seed, -1, (1 << 63) - 1),
    ):
        if not low <= value <= high or value != int(value):
            raise SettingsError(f"{name} is {value}; it must be a whole number from {low} to {high}.")
    for name, text in (("The prompt", parameters.prompt), ("The negative prompt", parameters.negative_prompt)):
        if len(text) > _MAX_PROMPT:
            raise SettingsError(f"{name} has {len(text)} characters; at most {_MAX_PROMPT} are read, so make it shorter.")
        if _NO_TEXT.search(text):
            raise SettingsError(f"{name} has null characters or halves of characters; remove them.")
        for words, weight in weighted(plain(text)):
            if not abs(weight) <= _MAX_WEIGHT:  # infinity times 0 is no number
                what = f"{name} weights {short_repr(words, 60)} by {weight:g}"
                raise SettingsError(f"{what}; a weight must be from -{_MAX_WEIGHT} to {_MAX_WEIGHT}, as 1.3.")
    check_syntax(parameters.prompt, parameters.negative_prompt)
    check_guidance(parameters.guidance)
    check_sampler(parameters.sampler, parameters.steps, timesteps)
    check_size(parameters.width, parameters.height)
    if not 1 <= parameters.hires <= _MAX_HIRES:
        raise SettingsError(f"Hires fix is by {parameters.hires:g}; it must be from 1 (none) to {_MAX_HIRES}.")
    check_batch(*check_size(*parameters.final_size), parameters.batch)
    if parameters.strength is not None and not 0 < parameters.strength <= 1:
        raise SettingsError(f"Denoising strength is {parameters.strength}; it must be above 0 and at most 1.")
    if parameters.strength is not None and int(parameters.steps * parameters.strength) < 1:  # as diffusers counts them
        what = f"Denoising strength {parameters.strength:g} leaves none of {parameters.steps} steps"
        raise SettingsError(f"{what}; give a higher strength, or more steps.")


def with_usable_numbers(parameters: Parameters, default: Parameters) -> Parameters:
    """The parameters, but those of ``default`` in place of numbers with which no picture can be generated."""
    values: dict[str, Any] = {name: value for name, value in vars(parameters).items() if isinstance(value, (int, float))}
    for name, value in values.items():
        try:
            check(Parameters(**{"steps": _MAX_STEPS, name: value}))  # of few steps a low strength leaves none
        except SettingsError:
            values[name] = getattr(default, name)
    return replace(parameters, **values)
