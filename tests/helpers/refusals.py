"""What every refusal is: one readable line that says what to do."""

from __future__ import annotations

import re

LONG = "x" * 5000
#: A refusal has one of these: what is expected, or what to do.
ADVICE = re.compile(
    r"must|[Gg]ive|expected|choose|use |leave|remove|known|[Ww]rite|--help|correct|convert|install|exclude|download|check"
    r"|make|try"
)


def assert_sentence(message: str) -> None:
    """One line of a readable length that says what to do."""
    assert "\n" not in message.strip()
    assert 10 < len(message) < 1000, message
    assert ADVICE.search(message), message
    assert message.rstrip().endswith((".", "}", ")")), message
    assert "Traceback" not in message
