"""What is not read in a prompt is refused in one sentence, by whichever command, and nothing else is."""

from __future__ import annotations

import pytest

from ov_backend.core.errors import SettingsError
from ov_backend.hosts.standalone.limits import check, check_syntax
from ov_backend.ui.infotext import Parameters
from tests.helpers.refusals import assert_sentence

REFUSED = {
    "a [cat:dog:0.5]": "[cat:dog:0.5]",
    "a [cat:0.5]": "[cat:0.5]",
    "a [cat::10]": "[cat::10]",
    "[a: b : 1e1 ]": "[a: b : 1e1 ]",
    "[cat:dog:-1]": "[cat:dog:-1]",
    "[(cat:1.2):dog:.5]": "[(cat:1.2):dog:.5]",
    "[a [red:blue:0.2] cat:dog:0.5]": "[red:blue:0.2]",
    "[[red] cat:dog:0.5]": "[ cat:dog:0.5]",
    "[cat|dog] in a field": "[cat|dog]",
    "[cat|\ndog]": "cat|",
    "[unclosed [cat|dog]": "[cat|dog]",
    "a cat AND a dog": "AND",
    "a cat:1.2 AND": "AND",
    "a cat <lyco:ink:0.8>": "<lyco:ink:0.8>",
    "<hypernet:none:1>": "<hypernet:none:1>",
    f"a (fox:{'9' * 400})": "weights 'fox' by inf",
    f"((fox:0):{'9' * 400})": "weights 'fox' by nan",
    "(fox:-100.5)": "weights 'fox' by -100.5; a weight must be from -100 to 100",
    f"{'(' * 50}fox{')' * 50}": "weights 'fox' by 117",
    "a\0b": "null characters",
    "\udcff": "halves of characters",
}
READ = [
    *("", "a [cat]", "a [[cat]]", "[a:b]", r"\[cat:dog:0.5\]", r"\[cat|dog\]", r"[cat\|dog]", "[(cat:1.2)]", "10:30"),
    *("sand and ANDES", "a cat BREAK a dog", "<lora:ink:0.8> a cat", "cat|dog", "3 < 4 > 2: 1", "] a:0.5]", "[a:0.5", "\\"),
]


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_what_is_not_read_is_refused(text: str, field: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check(Parameters(**{field: text}))
    message = str(refused.value)
    assert_sentence(message)
    assert REFUSED[text] in message
    assert message.startswith("The negative prompt " if field == "negative_prompt" else "The prompt ")


@pytest.mark.parametrize("text", READ)
def test_all_else_is_read(text: str) -> None:
    check_syntax(text, text if "<lora" not in text else "")


def test_a_lora_belongs_into_the_prompt() -> None:
    with pytest.raises(SettingsError, match="The negative prompt has '<lora:ink:1>'; write it into the prompt"):
        check_syntax("a cat", "<lora:ink:1>")


def test_very_many_brackets_take_no_time() -> None:
    check_syntax("[" * 30_000 + "a" + "]" * 30_000, "[a]" * 30_000)
