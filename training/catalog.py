"""The emoji that the model is trained on, and their names."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

GROUPS = ("Smileys & Emotion", "Animals & Nature", "Food & Drink", "Travel & Places", "Activities", "Objects")
# Left out: near-duplicates of other pictures, text and signs, places of worship, and others that a demo does not need.
LEFT_OUT = re.compile(
    r"o.clock|-thirty|moon face|(quarter|gibbous|waxing|waning) |oncoming|mailbox|banknote|bank$|hotel|post office|"
    r"kaaba|hindu|synagogue|mosque|shinto|map of|wheelchair|speaker|arrow|envelope|chart|tray|medal$|place medal|"
    r"bubble$|ZZZ|hundred|symbol|suit$|index|folder|page|notepad|clipboard|cigarette|coffin|funeral|headstone|"
    r"bell with|magnifying glass tilted right|camera with|globe (showing Europe|showing Asia|with)|goblin|ogre|"
    r"sun behind|cloud with|umbrella (with|on)|(two|revolving|growing|beating) hearts|heart (with|exclamation|decoration)|"
    r"(kissing|smiling) (face|cat) with (closed|smiling|heart)|grinning (cat|face) with|grinning squinting|beaming|"
    r"face (without|exhaling|in clouds|with (open|diagonal|raised|peeking|bags|holding|spiral|crossed))|dotted|shaking|"
    r"frowning face with|slightly|squinting|savoring|hushed|anguished|downcast|weary|persevering|confounded|relieved|"
    r"pensive|unamused|expressionless|woozy|disguised|tram car|light rail|metro|station|railway|suspension|aerial|"
    r"trolleybus|minibus|small airplane|airplane |petri|dna|placard|identification|elevator|urn|nazar|hamsa|"
    r"prayer|love letter|level slider|control knobs|page|ledger|bookmark|card |card$|linked|safety vest|dvd|optical|"
    r"fax|pager|trackball|videocassette|receipt|hair pick|clamp|chains|carpentry|white cane|hook|mouse trap|razor|"
    r"roll of paper|lotion|drop of blood|adhesive|crutch|x-ray|plunger|locked with|outbox|muted|low battery|"
    r"mobile phone with|keyboard$|abacus|briefs|shorts|sari|thong|one-piece|flat shoe|woman.s sandal|man.s shoe|military|"
    r"rescue|collision|dizzy|dashing|hole|sweat droplets|guide dog|service dog|ewe|two-hump|front-facing|chipmunk|"
    r"water buffalo|^ox$|microbe|mosquito|cockroach|cricket|worm|^fly$|leafless|wilted|rosette|empty nest|"
    r"hot beverage|rice cracker|oden|fish cake|moon cake|dango|tamale|falafel|stuffed|fondue|canned|sake|mate$|"
    r"pouring|tumbler|amphora|beverage box|curry|cooked|building construction|derelict|convenience|department|"
    r"wedding|Japanese|tanabata|pine decoration|red envelope|ticket|softball|lacrosse|curling|martial|mahjong|"
    r"flower playing|knot|thread|lab coat|clutch|safety|diya|nut and|alembic|hammer and|old key|pick$|"
    r"rolled-up|triangular|round pushpin|open book|notebook with|bar |foggy|fog$|cityscape at|sunset|sunrise$|"
    r"bridge|barber|stop sign|vertical traffic|oil drum|motorway|construction|bus stop|delivery|articulated|"
    r"motor boat|ferry|timer clock|mantelpiece|hourglass not|rain drops|landslide|kick scooter|manual|mountain cable"
)


@dataclass(frozen=True)
class Concept:
    """One thing that prompts can name: its name, aliases, group, and the names of its pictures."""

    name: str
    aliases: tuple[str, ...]
    group: str
    codepoints: str
    icon: str

    def asdict(self) -> dict[str, object]:
        """The fields as a dict, for JSON."""
        return asdict(self)


def candidates(names_dir: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Every emoji that is not left out, with its record."""
    for emoji, record in json.loads((names_dir / "data-by-emoji.json").read_text()).items():
        if record["group"] in GROUPS and not LEFT_OUT.search(record["name"]):
            yield emoji, record


def file_stem(emoji: str, folder: Path) -> str | None:
    """The name (code points in hex) of this emoji's picture in the 3D package, or None."""
    points = [ord(char) for char in emoji]
    for variant in (points, [point for point in points if point != 0xFE0F]):
        stem = "-".join(f"{point:x}" for point in variant)
        if (folder / "assets" / f"{stem}.webp").exists():
            return stem
    return None


def build(folders: dict[str, Path]) -> list[Concept]:
    """The concepts that have a picture in all three styles, in a fixed order.

    A keyword becomes an alias if it belongs to one concept only, and consists of 3 to 20 letters and spaces.
    """
    icons = [json.loads((folders[style] / "icons.json").read_text())["icons"] for style in ("flat", "line art")]
    keywords = json.loads((folders["keywords"] / "dist" / "emoji-en-US.json").read_text())
    selected = list(candidates(folders["names"]))
    names = {record["name"].lower() for _, record in selected}
    uses = Counter(word for emoji, _ in selected for word in set(keywords.get(emoji, ())))
    concepts = []
    for emoji, record in selected:
        name = record["name"].lower().replace("\u2019", "'")
        icon = record["slug"].replace("_", "-")
        stem = file_stem(emoji, folders["3d"])
        if stem is None or any(icon not in icon_set for icon_set in icons):
            continue
        words = [word.replace("_", " ").lower() for word in keywords.get(emoji, ()) if uses[word] == 1]
        aliases = [word for word in words if re.fullmatch(r"[a-z][a-z ]{2,19}", word) and word not in names and word != name]
        concepts.append(Concept(name, tuple(dict.fromkeys(aliases))[:3], record["group"], stem, icon))
    return concepts
