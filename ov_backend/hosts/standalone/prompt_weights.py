"""Weights of words in a prompt, as the WebUI writes them: ``(word)`` is 1.1, ``[word]`` 1 / 1.1, ``(word:1.3)`` 1.3.

Brackets multiply, and ``\\(`` is a bracket of the text. The word ``BREAK`` ends a chunk of tokens. What an encoder makes of a
token is multiplied by its weight; then all is scaled so that the mean stays, which is the WebUI's default ("Original" of its
setting *Emphasis mode*).
"""

from __future__ import annotations

import re

_ROUND, _SQUARE = 1.1, 1 / 1.1
_BREAK = re.compile(r"\s*\bBREAK\b\s*")
_PARTS = re.compile(r"\\[\\()\[\]]|[(\[\])]|:\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*\)|[^\\()\[\]:]+|[:\\]")


def weighted(text: str) -> list[tuple[str, float]]:
    """The pieces of a prompt with their weights, without the brackets; one that is not closed counts to the end."""
    pieces: list[tuple[str, float]] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}
    for match in _PARTS.finditer(text):
        part, number = match[0], match[1]
        if part in opened:
            opened[part].append(len(pieces))
        elif opened["("] and (part == ")" or number is not None):
            _multiply(pieces, opened["("].pop(), _ROUND if number is None else float(number))
        elif opened["["] and part == "]":
            _multiply(pieces, opened["["].pop(), _SQUARE)
        else:
            pieces.append((part[1:] if len(part) == 2 and part[0] == "\\" else part, 1.0))
    for bracket, factor in (("(", _ROUND), ("[", _SQUARE)):
        for start in opened[bracket]:
            _multiply(pieces, start, factor)
    return _joined(pieces)


def _multiply(pieces: list[tuple[str, float]], start: int, factor: float) -> None:
    pieces[start:] = [(text, weight * factor) for text, weight in pieces[start:]]


def _joined(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Neighbours of equal weight as one piece."""
    joined: list[tuple[str, float]] = []
    for text, weight in pieces:
        if joined and joined[-1][1] == weight:
            joined[-1] = joined[-1][0] + text, weight
        else:
            joined.append((text, weight))
    return joined


def plain_text(text: str) -> str:
    """A prompt as it is read, without the brackets that weight."""
    return "".join(piece for piece, _ in weighted(text))


def has_emphasis(text: str) -> bool:
    """Whether a prompt has brackets that weight words, or such ones of the text, or a BREAK."""
    return plain_text(text) != text or has_break(text)


def has_break(text: str) -> bool:
    """Whether a prompt has the word BREAK."""
    return _BREAK.search(text) is not None


def between_breaks(text: str) -> list[list[tuple[str, float]]]:
    """The pieces of a prompt with their weights, as :func:`weighted` gives them, between each BREAK and the next."""
    parts: list[list[tuple[str, float]]] = [[]]
    for piece, weight in weighted(text):
        first, *others = _BREAK.split(piece)
        parts[-1].append((first, weight))
        parts += [[(each, weight)] for each in others]
    return parts
