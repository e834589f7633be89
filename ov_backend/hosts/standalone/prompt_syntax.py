"""What the WebUI reads in a prompt and this project does not: it is refused, because as words it would mean something else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.hosts.standalone.lora_tags import plain

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
