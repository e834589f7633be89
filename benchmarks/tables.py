"""The tables of the documents: each function makes the cells of one from the figures of runs, rounded by the first functions."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

#: What each program of bench_peers is called, and its colour.
PEERS = {
    "ours": ("**this project**", "#e8681a"),
    "eager": ("PyTorch, f32", "#8b8f98"),
    "eager_bf16": ("PyTorch, bf16, channels last", "#a9763f"),
    "inductor": ("PyTorch's inductor, bf16, frozen", "#b0579b"),
    "openvino": ("OpenVINO's own backend", "#2f9d8f"),
    "optimum": ("optimum-intel", "#4a86d8"),
    "genai": ("openvino-genai", "#8a72dc"),
    "onnx": ("ONNX Runtime, f32", "#c9544f"),
    "cpp": ("stable-diffusion.cpp, f16", "#6f9a3c"),
}
NOT_MEASURED = "not measured"
Rows = list[list[str]]
#: The figures of a run by its name; empty where there is no such file.
Figures = Callable[[str], dict[str, Any]]


def short(value: float | None, missing: str = NOT_MEASURED) -> str:
    """A figure as all documents round it: counts whole, else three digits, and at most two after the point."""
    if value is None:
        return missing
    if isinstance(value, int) or abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def decibel(value: float, worst: float | None = None) -> str:
    """A PSNR, with the worst in brackets."""
    return f"{value:.1f}" + ("" if worst is None else f" ({worst:.1f})")


def percent(error: float | None, missing: str = NOT_MEASURED) -> str:
    """A relative error."""
    return missing if error is None else f"{float(f'{100 * error:.2g}'):.6f}".rstrip("0").rstrip(".") + " %"


def times(slow: float | None, fast: float | None) -> str:
    """How many times as fast."""
    return f"{slow / fast:.1f} times as fast" if slow and fast else NOT_MEASURED


def at(figures: Mapping[str, Any], path: str) -> Any:
    """The figure at a path, as "unet/cold/ours_s"; None where there is none."""
    found: Any = figures
    for name in path.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def machine(slug: str) -> str:
    """A machine of the name of a file, for the head of a column."""
    found = re.fullmatch(r"(\w+)-(.+?)-(\d+)(?:-(\d+)-threads)?", slug)
    if found is None:
        raise ValueError(f"{slug!r} is no name of a machine, such as intel-amx-16 or intel-amx-16-2-threads")
    maker, name, cores, threads = found.groups()
    kinds = {"amx": "AMX", "bf16": "AVX-512 with bf16", "avx2-vnni": "limited to AVX2 with VNNI"}
    limit = f", {threads} threads" if threads else ""
    return f"{maker.title().replace('Amd', 'AMD')}, {kinds.get(name, name.upper())}, {cores} cores{limit}"


def speed(figures_of: Figures, *slugs: str) -> Rows:
    """Seconds of a step by each program, a machine in each column; those of one run where other programs were measured too."""
    columns = []
    for slug in slugs:
        steps, peers = figures_of(f"precisions-{slug}"), at(figures_of(f"peers-{slug}"), "peers") or {}
        missing = "-" if steps or peers else NOT_MEASURED
        own = {"PyTorch f32": "eager", "PyTorch bf16": "eager_bf16", "OpenVINO bf16": "ours", "OpenVINO f32": "ours"}
        found = {name: at(peers, f"{own.get(name)}/step_s") or at(steps, f"{name}/step_s") for name in (*own, "OpenVINO int8")}
        others = {name: each["step_s"] for name, each in peers.items() if name not in own.values() and each["step_s"]}
        best = min(others, key=lambda name: others[name], default=None)
        other = f"{short(others[best])} ({PEERS[best][0]})" if best else NOT_MEASURED
        default = found["OpenVINO bf16"] if "OpenVINO bf16" in steps or peers else found["OpenVINO f32"]
        column = [short(found["PyTorch f32"], missing), short(found["PyTorch bf16"], missing), other]
        columns.append([machine(slug), *column, short(default, missing), short(found["OpenVINO int8"], missing)])
    names = ["seconds of a step", "PyTorch, f32", "PyTorch, bf16", "the fastest other program"]
    rows = [list(row) for row in zip([*names, "this project", "this project, int8"], *columns)]
    is_known = any(row[1:].count(NOT_MEASURED) < len(slugs) for row in rows[1:])
    return [row for row in rows if row[1:].count(NOT_MEASURED) < len(slugs)] if is_known else rows


def precisions(figures_of: Figures, slug: str) -> Rows:
    """Every precision on one machine."""
    rows = [["seconds", "first call", "fastest step", "slowest step", "error"]]
    for name, each in figures_of(f"precisions-{slug}").items():
        seconds = [short(each[key]) for key in ("first_call_s", "step_s", "slowest_step_s")]
        rows.append([name, *seconds, percent(each["relative_error"] or None, "-")])
    return rows


def limited(figures_of: Figures, *slugs: str) -> Rows:
    """PyTorch and OpenVINO in f32, a machine in each row."""
    rows = [["seconds of a step", "PyTorch f32", "OpenVINO f32", "", "OpenVINO int8"]]
    for slug in slugs:
        names = ("PyTorch f32", "OpenVINO f32", "OpenVINO int8")
        eager, ours, int8 = (at(figures_of(f"precisions-{slug}"), f"{name}/step_s") for name in names)
        rows.append([machine(slug), short(eager), short(ours), times(eager, ours), short(int8)])
    return rows


def unet(figures_of: Figures, slug: str) -> Rows:
    """A step, a decode and the first calls."""
    figures, rows = figures_of(f"unet-{slug}"), [["seconds", "PyTorch, f32", "this project", ""]]
    for name, title in (("unet", "one UNet step, batch 2"), ("vae_decode", "VAE decode")):
        eager, ours = (at(figures, f"{name}/cold/{key}") for key in ("eager_s", "ours_s"))
        rows.append([title, short(eager), short(ours), times(eager, ours)])
    for child, title in (("cold", "first UNet call ever"), ("warm", "first UNet call of a later process")):
        stages = at(figures, f"unet/{child}/stages_s") or {}
        named = ", ".join(f"{stage} {short(seconds)}" for stage, seconds in stages.items() if seconds >= 0.05)
        rows.append([title, "", short(at(figures, f"unet/{child}/first_call_s")), named])
    return rows


def changes(figures_of: Figures, slug: str) -> Rows:
    """The UNet's first call after each change, in its parts, and PyTorch's bare trace of a new size."""
    figures = at(figures_of(f"lifetimes-{slug}"), "returning") or {}
    rows = [["seconds", "the call", "its parts", "compiles"]]
    titles = {"B first": "a size never seen, 768x512", "LoRA put in": "a LoRA's weights put in", "LoRA taken out": "taken out"}
    titles |= {"hook put on": "a hook put on a module", "hook taken off": "taken off", "another checkpoint": "another checkpoint"}
    for call, title in titles.items():
        stages = at(figures, f"calls/{call}/stages_s") or {}
        named = ", ".join(f"{stage} {short(seconds)}" for stage, seconds in stages.items() if seconds >= 0.05)
        seconds, compiles = (at(figures, f"calls/{call}/{key}") for key in ("call_s", "compiles_count"))
        rows.append([title, short(seconds), named, short(compiles)])
    return [*rows, ["PyTorch's bare trace of that size", short(at(figures, "bare_trace_s")), "", ""]]


def int8(figures_of: Figures, *slugs: str) -> Rows:
    """Steps and whole pictures in int8, and the waits that it adds, a machine in each row."""
    compared = ["int8", "int8 / own"]
    rows = [["seconds", "a step, own precision", *compared, "a picture, own precision", *compared, "wait at once", "wait later"]]
    for slug in slugs:
        figures = figures_of(f"int8-{slug}")
        paths = [[f"{of}{key}" for key in ("own_s", "int8_s", "int8_ratio")] for of in ("", "pictures/")]
        steps, pictures = ([short(at(figures, path)) for path in each] for each in paths)
        waits = [short(at(figures, f"wait_s/{when}/total")) for when in ("waited for", "in the background")]
        rows.append([machine(slug), f"{steps[0]} ({figures['own']})" if figures else steps[0], *steps[1:], *pictures, *waits])
    return rows


def judging(figures_of: Figures, *slugs: str) -> Rows:
    """How alike pictures in int8 are, a machine and precision in each row."""
    rows = [["PSNR in dB", "pictures", "median (worst)", "median by recipe", "below 28 dB", "below 26 dB"]]
    for slug in slugs:
        figures = figures_of(f"int8_judging-{slug}")
        recipes = list(figures.get("int8_db", {}).values())
        own = figures.get("own", "own precision")
        for name, values in ((own, [figures.get("own_db", [])]), ("int8", recipes)):
            if name == "f32":
                continue  # what the others are compared with
            together = [value for each in values for value in each]
            medians = sorted(statistics.median(each) for each in values if each)
            below = [str(sum(value < bound for value in together)) if together else NOT_MEASURED for bound in (28, 26)]
            by_recipe = f"{decibel(medians[0])} to {decibel(medians[-1])}" if len(medians) > 1 else "-"
            likeness = decibel(statistics.median(together), min(together)) if together else NOT_MEASURED
            rows.append([f"{name}: {machine(slug)}", str(len(together)), likeness, by_recipe, *below])
    return rows


def fidelity(figures_of: Figures, slug: str) -> Rows:
    """How alike pictures in f32 and in the device's own precision are, by sampler."""
    figures = figures_of(f"fidelity-{slug}")
    rows = [["sampler", *(f"{name}: {what}" for name in figures for what in ("PSNR in dB", "largest", "mean"))]]
    for sampler in next(iter(figures.values()), {}):
        each = [by_sampler[sampler] for by_sampler in figures.values()]
        likeness = [decibel(x["median_db"], x["worst_db"]) for x in each]
        cells = zip(likeness, (short(x["largest_levels"]) for x in each), (short(x["mean_levels"]) for x in each))
        rows.append([sampler, *(cell for three in cells for cell in three)])
    return rows


def memory(figures_of: Figures, slug: str) -> Rows:
    """The memory of whole pipelines."""
    rows = [["MiB resident", "loaded", "peak of the first picture", "after it"]]
    names = {"pytorch": "PyTorch, f32", "default": '`low_memory="off"`', "low memory": '`low_memory="on"`'}
    for benchmark, network in (("memory", "SD1.5, 512x512"), ("memory-sdxl", "SDXL, 1024x1024")):
        ways = figures_of(f"{benchmark}-{slug}").get("ways", {})
        for way, name in names.items():
            paths = ("loaded/after_mib", "first picture/peak_mib", "first picture/after_mib")
            missing = "did not fit" if "did not fit" in ways.get(way, {}) else NOT_MEASURED
            rows.append([f"{network}: {name}", *(short(at(ways, f"{way}/{path}"), missing) for path in paths)])
    return rows


def lifetimes(figures_of: Figures, slug: str) -> Rows:
    """The memory of one network while it is compiled."""
    figures = figures_of(f"lifetimes-{slug}")
    keys = {"weights_mib": "weights", "before_mib": "resident before", "peak_extra_mib": "more at most"}
    keys["kept_extra_mib"] = "more after"
    rows = [["MiB", *keys.values()]]
    for part, name in (("peak", "compiled for the first time"), ("peak, stored", "with a stored graph")):
        rows.append([name, *(short(at(figures, f"{part}/{key}")) for key in keys)])
    return rows


def webui(figures_of: Figures, slug: str) -> Rows:
    """What changes in a WebUI cost: each state with all its pictures, in their order."""
    rows = [["seconds of a picture", "script off", "script on", "compiles"]]
    for part in figures_of(f"webui-{slug}").get("parts", {}).values():
        for name in dict.fromkeys(row["name"] for row in part):
            keys = ("off_s", "on_s", "compiles_count")
            rows.append([name, *(", ".join(short(row[key]) for row in part if row["name"] == name) for key in keys)])
    return rows


def controlnet(figures_of: Figures, slug: str) -> Rows:
    """The UNet with a ControlNet."""
    figures = figures_of(f"controlnet-{slug}")
    rows = [["", "a step of both networks, s", "first picture, s", "highest memory, MiB"]]
    names = {"eager": "PyTorch, f32", "blocks": "OpenVINO, the UNet by its blocks", "whole": "OpenVINO, the UNet whole"}
    for way, name in names.items():
        rows.append([name, *(short(at(figures, f"{way}/{key}")) for key in ("step_s", "picture_s", "peak_mib"))])
    return rows


def batch(figures_of: Figures, slug: str) -> Rows:
    """A batch and loops over the same rows."""
    rows = [["", "pictures an hour", "networks compiled", "preparing, s", "all, s"]]
    names = {"batch": "a batch", "loop": "a pipeline for each checkpoint, row by row", "standalone": "one pipeline, row by row"}
    for way, each in figures_of(f"batch_networks-{slug}").get("ways", {}).items():
        keys = ("pictures_per_hour", "compiles_count", "prepared_s", "all_s")
        rows.append([names.get(way, "a loop over the API of a WebUI with this extension"), *(short(each[key]) for key in keys)])
    return rows


def peers(figures_of: Figures, slug: str) -> Rows:
    """All programs on one machine."""
    columns = {
        "step_s": "a step", "decode_s": "VAE", "cold_s": "first picture ever", "again_s": "a later one",
        "process_s": "after a restart", "second_s": "second checkpoint", "lora_s": "LoRA", "disk_mib": "MiB on disk",
    }  # fmt: skip
    rows = [["seconds", *columns.values()]]
    measured = at(figures_of(f"peers-{slug}"), "peers") or {}
    for name in (name for name in PEERS if name in measured):
        peer, cells, said = measured[name], [PEERS[name][0]], set()
        for key in columns:
            phase = "new" if key == "process_s" else "cold"
            end = "" if key == "disk_mib" or phase in said else peer["ends"].get(phase, "")
            said |= {phase} if peer[key] is None else set()
            late = re.search(r"not done after (\d+ s)", end)
            cell = short(peer[key], f"not in {late.group(1)}" if late else "failed" if end else "-")
            cells.append(f"stale, then {cell}" if key == "lora_s" and "LoRA" in peer["stale"] else cell)
        rows.append(cells)
    return rows


_OF_NETWORKS = (speed, precisions, limited, unet, changes, int8, judging, fidelity, memory, lifetimes, controlnet)
TABLES: dict[str, Callable[..., Rows]] = {each.__name__: each for each in (*_OF_NETWORKS, webui, batch, peers)}
