"""Evaluates the trained model: grids of held_out-out prompts, the judge's accuracy, other sizes."""

from __future__ import annotations

import argparse
import json
import logging
import time

import torch
from torch import Tensor

from .captions import Spec, caption
from .classifier import accuracy
from .companions import TrainedModel, add_model_arguments, load_trained
from .grid import save_grid
from .heldout import specs as held_out_prompts
from .sampling import sample_pictures
from .train_classifier import load as load_classifier
from .train_classifier import single

log = logging.getLogger(__name__)
OTHER_SIZES = ((256, 384), (384, 256), (192, 192), (320, 320), (384, 384), (128, 128), (512, 512))


def generate(
    model: TrainedModel,
    specs: list[Spec],
    options: argparse.Namespace,
    guidance: float,
    size: tuple[int, int] = (256, 256),
    seed: int = 0,
) -> Tensor:
    """Pictures for the simplest caption of each spec."""
    empty = torch.tensor([model.tokenizer.encode("")], device=model.device)
    parts = []
    for start in range(0, len(specs), options.chunk):
        texts = [caption(spec, model.names) for spec in specs[start : start + options.chunk]]
        ids = torch.tensor([model.tokenizer.encode(text) for text in texts], device=model.device)
        parts.append(sample_pictures(model.pair.unet, model.pair.text, model.vae, ids, empty, size, steps=options.steps,
                                     guidance=guidance, seed=seed + start))  # fmt: skip
    return torch.cat(parts).float()


def main() -> None:
    """Parse the command line and evaluate."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=512, help="pictures per measurement")
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--guidance", type=float, nargs="+", default=[3.0, 5.0, 7.0])
    parser.add_argument("--seed", type=int, default=99)
    add_model_arguments(parser)
    options = parser.parse_args()
    begin = time.monotonic()
    model = load_trained(options)
    judge = load_classifier("judge", options.state, options.device)
    held_out = [model.sampler.draw_held_out() for _ in range(options.count)]
    seen = single(model.sampler, options.count)
    real = torch.cat([model.composer(held_out[n : n + 64]).float() for n in range(0, len(held_out), 64)])
    facts: dict = {"pictures": options.count, "steps": options.steps, "sampler": "DDIM"}
    facts["real_held_out"] = accuracy(judge, real, held_out)
    for guidance in options.guidance:
        facts[f"generated_held_out_cfg{guidance:g}"] = accuracy(judge, generate(model, held_out, options, guidance), held_out)
    facts["generated_seen_cfg5"] = accuracy(judge, generate(model, seen, options, 5.0), seen)
    prompts = held_out_prompts(model.names)
    for seed in range(2):
        save_grid(generate(model, prompts, options, 5.0, seed=seed), options.out / f"held_out_{seed}.png", columns=8)
    alone = [spec for spec in prompts if len(set(spec.concepts)) == 1]
    facts["prompts"] = [caption(spec, model.names) for spec in prompts]
    facts["prompts_single_cfg5"] = accuracy(judge, generate(model, alone, options, 5.0), alone)
    for height, width in OTHER_SIZES:
        save_grid(
            generate(model, prompts[:4] + prompts[-4:], options, 5.0, (height, width)),
            options.out / f"size_{width}x{height}.jpg",
            columns=4,
        )
        if (height, width) != (512, 512):
            part = held_out[:128]
            pictures = generate(model, part, options, 5.0, (height, width))
            facts[f"generated_{width}x{height}_cfg5"] = accuracy(judge, pictures, part)
    facts["seconds"] = round(time.monotonic() - begin, 1)
    (options.out / "evaluation.json").write_text(json.dumps(facts, indent=1))
    log.info("%s", json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
