"""The figures as text: table and remarks; and checks of ov_backend's figures."""

from __future__ import annotations

from typing import Any

LABELS = {
    "eager": "PyTorch eager, float32",
    "eager_bf16": "PyTorch eager, bf16, channels last",
    "ours": "ov_backend.accelerate (ours)",
    "optimum": "optimum-intel, reshaped",
    "genai": "openvino-genai, reshaped",
    "onnx": "ONNX Runtime, optimum-onnx, float32",
    "cpp": "stable-diffusion.cpp, float16",
    "openvino": "torch.compile: OpenVINO's own",
    "inductor": "torch.compile: inductor, bf16, frozen",
}
OURS = "ours"
#: Remarks on peers that apply to every run.
NOTES = {
    "inductor": "changed weights need torch._dynamo.reset(), after which everything is compiled again",
    "openvino": "aot_autograd, and torch 2.4.1: with 2.1.2 (no TracingContext.try_get) and 2.13 (IndexError) inductor takes over;"
    " no model_caching, whose key leaves the weights out",
    "optimum": "it holds a copy of the weights: a second checkpoint or a LoRA is exported again; each size is compiled again",
    "genai": "runs optimum-intel's exports, whose time is counted; a pipeline for each of two sizes; the LoRA needs a new one",
    "onnx": "it holds a copy of the weights: a second checkpoint or a LoRA is exported again",
    "cpp": "its own sampler, and a smaller first noise (by 15 % with two steps): the error is not that of its arithmetic alone",
}
#: The relative error allowed for a picture, with bf16 arithmetic and in float32.
MAX_ERROR, MAX_ERROR_F32 = 6e-2, 1e-3
PICTURES = ("first", "again", "wide", "back", "second checkpoint", "LoRA")


def pictures(peer: dict[str, Any], phase: str = "cold") -> dict[str, dict[str, Any]]:
    """A peer's pictures by label; if the LoRA needed a recompile, the picture after it."""
    lines = [line for line in peer["lines"] if line["key"] == "picture" and line["phase"] == phase]
    return {line["label"].removesuffix(", renewed"): line for line in lines}


def figures(peer: dict[str, Any]) -> dict[str, float | None]:
    """One row of the table: seconds, memory in GiB, disk in MiB; None for a missing figure."""
    cold, new = pictures(peer), pictures(peer, "new")
    square = [cold[name] for name in cold if name != "wide"]
    exports = [line["seconds"] for line in peer["lines"] if line["key"] == "export" and line["phase"] == "cold"]
    disk = [line["bytes"] / 2**20 for line in peer["lines"] if line["key"] == "disk"]
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
        "again": seconds("again"),
        "back": seconds("back"),
        "second": seconds("second checkpoint"),
        "lora": seconds("LoRA"),
        "peak": max(peaks, default=None),
        "one": new["first"]["peak"] / 1024 if "first" in new else None,
        "disk": disk[0] if disk else None,
        "error": max((line["error"] for line in cold.values() if line["error"] is not None), default=None),
    }


def compact(peer: dict[str, Any]) -> dict[str, Any]:
    """What the documents show of a peer: its row, the pictures' times since the start, memory by resolution, and how it ended."""
    row, drawn = figures(peer), pictures(peer)
    lines = [line for line in peer["lines"] if line["key"] == "picture"]
    sizes = [line["rss"] / 1024 for line in lines if line["phase"] == "new"]  # a picture of each
    stale = [line["label"] for line in lines if line["stale"]]
    return {
        **{f"{name}_s": row[name] for name in ("step", "decode", "cold", "process", "wide", "again", "back", "second", "lora")},
        "disk_mib": row["disk"],
        "peak_gib": row["peak"],
        "relative_error": row["error"],
        "pictures_at_s": {label: drawn[label]["at"] for label in PICTURES if label in drawn},
        "resident_gib": sizes,
        "stale": stale,
        "ends": peer["ends"],
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
    "disk": ("MiB", 8, 1),
}
EXPLANATION = """\
s/step, VAE: the fastest of this run. Seconds until a picture is finished: cold, the first one since the start of the process
with an empty disk cache, including the export; process, the first one of a second process; wide, after a change from 512x512 to
512x768 (depends on --size); back, after the change to the first size; second, with another checkpoint's weights; LoRA, with
changed weights in attention. GiB: peak, of the first process until its weights are changed; one, of the second process with its
first picture. MiB: stored on disk for one checkpoint. Error: the largest relative error of a picture."""


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    conditions = results["conditions"]
    first = f"{conditions['size']}, {conditions['steps_count']} steps per picture"
    width = max(map(len, LABELS.values()))
    heads = "".join(f"{head:>{column}}" for head, column, _ in COLUMNS.values())
    lines = [first, "", f"{'':{width}}{heads}{'error':>9}"]
    for name, peer in results["peers"].items():
        row = figures(peer)
        cells = "".join(
            f"{'-':>{column}}" if row[key] is None else f"{row[key]:{column}.{digits}f}"
            for key, (_, column, digits) in COLUMNS.items()
        )
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        lines.append(f"{LABELS[name]:{width}}{cells}{error:>9}")
        lines += [f"    {remark}" for remark in (*filter(None, [NOTES.get(name)]), *remarks(peer))]
    return "\n".join([*lines, "", EXPLANATION])


def remarks(peer: dict[str, Any]) -> list[str]:
    """Failures, stale pictures and versions of a peer."""
    remarks = [f"{phase} process: {end}" for phase, end in peer["ends"].items() if end]
    stale = [line for line in peer["lines"] if line["key"] == "picture" and line["stale"]]
    recompiled = any(line.get("label") == "LoRA, renewed" for line in peer["lines"])
    for line in stale:
        after = "; the time above is that of compiling everything again" if recompiled and line["label"] == "LoRA" else ""
        remarks.append(f"STALE: {line['label']}: the picture from before the change, after {line['seconds']:.1f} s{after}")
    reasons = [line["reason"] for line in peer["lines"] if line["key"] == "gave_up"]
    if reasons:
        compiles = sum(line["key"] == "openvino_compile" for line in peer["lines"])
        fallbacks = f"it fell back to inductor or PyTorch {len(reasons)} times"
        remarks.append(f"{fallbacks} (OpenVINO compiled {compiles} graphs): {reasons[0]}")
    versions = [line["versions"] for line in peer["lines"] if line["key"] == "loaded"]
    if versions:
        remarks.append(", ".join(f"{name} {version}" for name, version in versions[0].items()))
    return remarks


def check(results: dict[str, Any]) -> None:
    """Check PyTorch's and ov_backend's figures.

    Raises:
        AssertionError: PyTorch's two processes differ, or a picture of ov_backend is wrong or stale, or needed extra work.
    """
    peers = results["peers"]
    for line in pictures(peers["eager"], "new").values():
        assert line["error"] is None or line["error"] < MAX_ERROR_F32, f"PyTorch against itself: {line}"
    assert "LoRA" in pictures(peers["eager"]), f"there is no reference: {peers['eager']['ends']}"
    if OURS not in peers:
        return
    assert not any(peers[OURS]["ends"].values()), peers[OURS]["ends"]
    drawn = pictures(peers[OURS])
    for line in [*drawn.values(), pictures(peers[OURS], "new")["first"]]:
        assert line["error"] < MAX_ERROR, line
        assert not line["stale"], line
        assert line["counts"]["fallbacks"] == 0, line
    for before, after in (("first", "again"), ("wide", "back")):
        assert drawn[before]["counts"]["compiles"] == drawn[after]["counts"]["compiles"], "compiled twice"
    for before, after in (("back", "second checkpoint"), ("second checkpoint", "LoRA")):
        assert drawn[before]["counts"]["captures"] == drawn[after]["counts"]["captures"], "captured twice"
    counts = pictures(peers[OURS], "new")["first"]["counts"]
    assert counts["captures"] == counts["graph_hits"], "converted again in a new process"
