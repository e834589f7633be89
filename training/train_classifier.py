"""Trains a classifier on composed pictures of one thing each."""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from . import shards
from .captions import Sampler
from .classifier import Classifier, accuracy, targets
from .compose import Composer, load_concepts, load_sprites
from .heldout import forbidden
from .paths import data_dir

log = logging.getLogger(__name__)


def single(sampler: Sampler, count: int) -> list:
    """Specs of one thing each."""
    specs = (sampler.draw() for _ in range(count))
    return [replace(spec, concepts=spec.concepts[:1], words=(), stacked=False) for spec in specs]


def train(name: str, seconds: float, steps: int, batch: int, width: int, seed: int, device: str, out: Path) -> dict:
    """Train until ``steps`` or ``seconds`` and save ``<name>-*.safetensors``; returns the measured facts."""
    torch.manual_seed(seed)
    concepts = load_concepts(data_dir())
    names = [record["name"] for record in concepts]
    sampler = Sampler(concepts, seed, forbidden(names))
    composer = Composer(load_sprites(data_dir(), device), seed)
    net = Classifier(len(concepts), width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.02)
    begin, step = time.monotonic(), 0
    bar = tqdm(total=steps, desc=name, mininterval=10, ncols=100)
    while step < steps and time.monotonic() - begin < seconds:
        done = max(step / steps, (time.monotonic() - begin) / seconds)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, step / 100) * max(0.02, min(1.0, 2 * (1 - done)))
        specs = single(sampler, batch)
        pictures = composer(specs).float()
        pictures = pictures + 0.05 * torch.rand(batch, 1, 1, 1, device=device) * torch.randn_like(pictures)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            logits = net(pictures.to(memory_format=torch.channels_last))
        expected = targets(specs, device)
        loss = sum(F.cross_entropy(logits[key].float(), expected[key]) for key in logits)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        bar.update()
        if step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
    bar.close()
    net.eval()
    held_out = [sampler.draw_held_out() for _ in range(512 if steps > 10 else 64)]
    parts = [composer(held_out[n : n + 64]).float() for n in range(0, len(held_out), 64)]
    facts = {"steps": step, "seconds": round(time.monotonic() - begin, 1), "width": width, "seed": seed,
             "held_out_real": accuracy(net, torch.cat(parts), held_out)}  # fmt: skip
    shards.save(shards.half(net.state_dict()), out, name, facts)
    log.info("%s: %s", name, facts)
    return facts


def load(name: str, folder: Path, device: str) -> Classifier:
    """A trained classifier, in evaluation mode and frozen.

    Raises:
        FileNotFoundError: it has not been trained yet.
    """
    saved = shards.load(folder, name)
    if saved is None:
        raise FileNotFoundError(f"no classifier {name!r} in {folder}; train it first (python -m training.train_classifier)")
    weights, facts = saved
    net = Classifier(weights["heads.concept.weight"].shape[0], facts["width"]).to(device)
    net.load_state_dict({key: value.float() if value.is_floating_point() else value for key, value in weights.items()})
    return net.eval().requires_grad_(False)


def main() -> None:
    """Parse the command line and train."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("perceptual", "judge"))
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    width, seed = (32, 11) if options.name == "perceptual" else (40, 12)
    train(options.name, options.seconds, options.steps, options.batch, width, seed, options.device, options.out)


if __name__ == "__main__":
    main()
