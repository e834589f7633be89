"""What was told as text: figures, ratios, remarks; and what must hold of ours."""

from __future__ import annotations

from typing import Any

LABELS = {
    "eager": "PyTorch eager, float32",
    "eager_bf16": "PyTorch eager, bf16, channels last",
    "ours": "ov_backend.accelerate (ours)",
    "optimum": "optimum-intel, reshaped",
    "genai": "openvino-genai, reshaped",
    "openvino": "torch.compile: OpenVINO's own",
    "inductor": "torch.compile: inductor, bf16, frozen",
}
OURS = "ours"
#: What has to be known of a peer whatever it did.
NOTES = {
    "inductor": "a changed weight is seen after torch._dynamo.reset() only: everything is compiled again",
    "openvino": "aot_autograd, and torch 2.4.1: with 2.1.2 (no TracingContext.try_get) and 2.13 (IndexError) inductor takes over;"
    " no model_caching, whose key leaves the weights out",
    "optimum": "it holds weights of its own: a second checkpoint or a LoRA is exported anew; each size is compiled anew",
    "genai": "optimum-intel's exports, their time counted; a pipeline for each of two sizes; the LoRA is fused into a new one",
}
#: Relative error of a picture that is right, with bf16 arithmetic and in float32.
RIGHT, EXACT = 6e-2, 1e-3
PICTURES = ("first", "again", "wide", "back", "second checkpoint", "LoRA")


def pictures(found: dict[str, Any], phase: str = "cold") -> dict[str, dict[str, Any]]:
    """A peer's pictures by label; where a LoRA was seen only once everything was renewed, that one."""
    lines = [line for line in found["lines"] if line["key"] == "picture" and line["phase"] == phase]
    return {line["label"].removesuffix(", renewed"): line for line in lines}


def figures(found: dict[str, Any]) -> dict[str, float | None]:
    """One row: seconds, but for memory (GiB) and disk (MB); None where there is nothing."""
    cold, new = pictures(found), pictures(found, "new")
    square = [cold[name] for name in cold if name != "wide"]
    exports = [line["seconds"] for line in found["lines"] if line["key"] == "export" and line["phase"] == "cold"]
    disk = [line["bytes"] / 1e6 for line in found["lines"] if line["key"] == "disk"]
    peaks = [line["peak"] / 1024 for name, line in cold.items() if name in PICTURES[:4]]

    def seconds(name: str) -> float | None:
        return cold[name]["seconds"] if name in cold else None

    return {
        "step": min((step for line in square for step in line["steps"]), default=None),
        "decode": min((line["decode"] for line in square), default=None),
        "cold": cold["first"]["at"] if "first" in cold else None,
        "export": exports[0] if exports else None,
        "process": new["first"]["at"] if "first" in new else None,
        "wide": seconds("wide"),
        "back": seconds("back"),
        "second": seconds("second checkpoint"),
        "lora": seconds("LoRA"),
        "peak": max(peaks, default=None),
        "one": new["first"]["peak"] / 1024 if "first" in new else None,
        "disk": disk[0] if disk else None,
        "error": max((line["error"] for line in cold.values() if line["error"] is not None), default=None),
    }


#: Heading, width, digits after the point.
COLUMNS = {
    "step": ("s/step", 8, 3),
    "decode": ("VAE", 7, 2),
    "cold": ("cold", 8, 1),
    "export": ("export", 8, 1),
    "process": ("process", 9, 1),
    "wide": ("wide", 8, 1),
    "back": ("back", 8, 1),
    "second": ("second", 8, 1),
    "lora": ("LoRA", 8, 1),
    "peak": ("peak", 7, 1),
    "one": ("one", 7, 1),
    "disk": ("MB", 8, 1),
}
EXPLANATION = """\
s/step, VAE: the fastest of this run. Seconds: cold, the first picture from the start of the process, nothing on disk, export
included and shown by itself; process, the first picture of a second process; wide, 512x512 -> 512x768 (by --size); back, to the
first size again; second, another checkpoint's weights; LoRA, changed weights in attention: each until the picture was there.
GiB: peak, of the first process until its weights are changed; one, that of the second process with its first picture. MB that are
kept on disk for one checkpoint. Error: the largest relative one of a picture."""


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    told = results["conditions"]
    first = f"{told['size']}x{told['size']}, {told['steps']} steps a picture, "
    first += f"{told['cpu']}, {told['cores']} cores, load {told['load']}"
    first += ", TINY networks" if told["tiny"] else ""
    width = max(map(len, LABELS.values()))
    heads = "".join(f"{head:>{room}}" for head, room, _ in COLUMNS.values())
    lines = [first, "", f"{'':{width}}{heads}{'error':>9}"]
    for name, found in results["peers"].items():
        row = figures(found)
        cells = "".join(
            f"{'-':>{room}}" if row[key] is None else f"{row[key]:{room}.{digits}f}" for key, (_, room, digits) in COLUMNS.items()
        )
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        lines.append(f"{LABELS[name]:{width}}{cells}{error:>9}")
        lines += [f"    {remark}" for remark in (*filter(None, [NOTES.get(name)]), *remarks(found))]
    return "\n".join([*lines, "", *ratios(results["peers"]), "", EXPLANATION]) + "\n"


def remarks(found: dict[str, Any]) -> list[str]:
    """What the figures do not say."""
    said = [f"{phase} process: {end}" for phase, end in found["ends"].items() if end]
    stale = [line for line in found["lines"] if line["key"] == "picture" and line["stale"]]
    renewed = any(line.get("label") == "LoRA, renewed" for line in found["lines"])
    for line in stale:
        after = "; the time above is that of making everything again" if renewed and line["label"] == "LoRA" else ""
        said.append(f"STALE: {line['label']}: the picture of before the change, after {line['seconds']:.1f} s{after}")
    reasons = [line["reason"] for line in found["lines"] if line["key"] == "gave_up"]
    if reasons:
        used = sum(line["key"] == "openvino_compile" for line in found["lines"])
        said.append(f"it gave up {len(reasons)} times (OpenVINO compiled {used} graphs), for inductor or PyTorch: {reasons[0]}")
    versions = [line["versions"] for line in found["lines"] if line["key"] == "loaded"]
    if versions:
        said.append(", ".join(f"{name} {version}" for name, version in versions[0].items()))
    return said


def ratios(peers: dict[str, Any]) -> list[str]:
    """Ours against everybody else."""
    rows = {name: figures(found) for name, found in peers.items()}
    if OURS not in rows:
        return []
    lines = ["times what ours takes:"]
    for name, row in rows.items():
        parts = []
        for key in ("step", "decode", "cold", "process", "wide", "back", "second", "lora"):
            theirs, ours = row[key], rows[OURS][key]
            if theirs is not None and ours:
                parts.append(f"{COLUMNS[key][0]} {theirs / ours:.2f}")
        if name != OURS and parts:
            lines.append(f"    {LABELS[name]}: {', '.join(parts)}")
    for key in ("step", "decode"):
        others = [(value, name) for name, row in rows.items() if name != OURS and (value := row[key]) is not None]
        mine = rows[OURS][key]
        if others and mine is not None:
            best, name = min(others)
            lines.append(f"{COLUMNS[key][0]}: ours is {mine / best:.3f} times the best peer's ({LABELS[name]})")
    return lines


def check(results: dict[str, Any]) -> None:
    """What must hold.

    Raises:
        AssertionError: PyTorch's second process draws another picture, or ours is wrong, stale, or made something twice.
    """
    peers = results["peers"]
    for line in pictures(peers["eager"], "new").values():
        assert line["error"] is None or line["error"] < EXACT, f"PyTorch against itself: {line}"
    assert "LoRA" in pictures(peers["eager"]), f"there is no reference: {peers['eager']['ends']}"
    if OURS not in peers:
        return
    assert not any(peers[OURS]["ends"].values()), peers[OURS]["ends"]
    drawn = pictures(peers[OURS])
    for line in [*drawn.values(), pictures(peers[OURS], "new")["first"]]:
        assert line["error"] < RIGHT, line
        assert not line["stale"], line
        assert line["counts"]["fallbacks"] == 0, line
    for before, after in (("first", "again"), ("wide", "back")):
        assert drawn[before]["counts"]["compiles"] == drawn[after]["counts"]["compiles"], "compiled twice"
    for before, after in (("back", "second checkpoint"), ("second checkpoint", "LoRA")):
        assert drawn[before]["counts"]["captures"] == drawn[after]["counts"]["captures"], "captured twice"
    assert pictures(peers[OURS], "new")["first"]["counts"]["captures"] == 0, "captured again in a new process"
