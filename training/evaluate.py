"""Measure the trained model: the held-out grid, the judge's accuracy, other sizes."""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path

import torch
from torch import Tensor

from .captions import Spec, caption
from .classifier import accuracy
from .companions import Studio, open_studio
from .grid import save_grid
from .heldout import specs
from .sampling import sample_pictures
from .train_classifier import load as load_classifier
from .train_classifier import single

log = logging.getLogger(__name__)
OTHER_SIZES = ((256, 384), (384, 256), (192, 192), (320, 320), (384, 384), (128, 128), (512, 512))


def generate(
    studio: Studio, wanted: list[Spec], a: argparse.Namespace, guidance: float, size: tuple[int, int] = (256, 256), seed: int = 0
) -> Tensor:
    """Pictures for the plainest caption of each spec."""
    empty = torch.tensor([studio.tokenizer.encode("")], device=studio.device)
    made = []
    for start in range(0, len(wanted), a.chunk):
        texts = [caption(spec, studio.names) for spec in wanted[start : start + a.chunk]]
        ids = torch.tensor([studio.tokenizer.encode(text) for text in texts], device=studio.device)
        made.append(sample_pictures(studio.pair.unet, studio.pair.text, studio.vae, ids, empty, size, steps=a.steps,
                                    guidance=guidance, seed=seed + start))  # fmt: skip
    return torch.cat(made).float()


def main() -> None:
    """Command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=512, help="pictures per measurement")
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--guidance", type=float, nargs="+", default=[3.0, 5.0, 7.0])
    parser.add_argument("--seed", type=int, default=99)
    parser.add_argument("--model-seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    begin = time.monotonic()
    studio = open_studio(a)
    judge = load_classifier("judge", a.state, a.device)
    held = [studio.sampler.draw_held_out() for _ in range(a.count)]
    seen = single(studio.sampler, a.count)
    real = torch.cat([studio.composer(held[n : n + 64]).float() for n in range(0, len(held), 64)])
    facts: dict = {"pictures": a.count, "steps": a.steps, "sampler": "DDIM", "real_held_out": accuracy(judge, real, held)}
    for guidance in a.guidance:
        facts[f"generated_held_out_cfg{guidance:g}"] = accuracy(judge, generate(studio, held, a, guidance), held)
    facts["generated_seen_cfg5"] = accuracy(judge, generate(studio, seen, a, 5.0), seen)
    prompts = specs(studio.names)
    for seed in range(2):
        save_grid(generate(studio, prompts, a, 5.0, seed=seed), a.out / f"held_out_{seed}.png", columns=8)
    alone = [spec for spec in prompts if len(set(spec.concepts)) == 1]
    facts["prompts"] = [caption(spec, studio.names) for spec in prompts]
    facts["prompts_single_cfg5"] = accuracy(judge, generate(studio, alone, a, 5.0), alone)
    for height, width in OTHER_SIZES:
        save_grid(
            generate(studio, prompts[:4] + prompts[-4:], a, 5.0, (height, width)), a.out / f"size_{width}x{height}.jpg", columns=4
        )
        if (height, width) != (512, 512):
            part = held[:128]
            facts[f"generated_{width}x{height}_cfg5"] = accuracy(judge, generate(studio, part, a, 5.0, (height, width)), part)
    facts["seconds"] = round(time.monotonic() - begin, 1)
    (a.out / "evaluation.json").write_text(json.dumps(facts, indent=1))
    log.info("%s", json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
