"""Trains the UNet and the text encoder together on encoded pictures.

The objective is noise prediction on Stable Diffusion 1's schedule with min-SNR weights (arXiv 2303.09556), some offset noise so
that uniform backgrounds get their colour, and 10% empty captions. Weights are averaged exponentially. Training stops at a step
or a time limit, saves its state, and continues from there when it is called again.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from . import networks, shards, state
from .bank import Bank
from .bpe import Tokenizer
from .captions import Sampler, caption
from .compose import Composer, load_concepts, load_sprites
from .grid import save_grid
from .heldout import forbidden, specs
from .paths import TOKENIZER_DIR, data_dir
from .sampling import sample_pictures

log = logging.getLogger(__name__)
SHAPES = ((192, 256), (256, 192), (256, 384), (384, 256), (192, 192), (320, 320), (384, 384))
OTHER_SHAPES = 0.08
DROPPED, OFFSET, GAMMA, EMA = 0.1, 0.08, 5.0, 0.9995
WARM_UP = 200


def learning_rate(step: int, total: int, peak: float, warm_from: int) -> float:
    """Warm-up (also after a resume without optimizer state), constant, then cosine to 2% over the last 40%."""
    tail = min(1.0, max(0.0, (step / total - 0.6) / 0.4))
    return peak * min(1.0, (step - warm_from + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * tail)))


def load_vae(folder: Path, device: str) -> networks.VAE:
    """The trained VAE, frozen.

    Raises:
        FileNotFoundError: it has not been trained yet.
    """
    saved = shards.load(folder, "vae")
    if saved is None:
        raise FileNotFoundError(f"no VAE in {folder}; train it first (python -m training.train_vae)")
    vae = networks.build_vae().to(device, memory_format=torch.channels_last)
    vae.load_state_dict(saved[0])
    return vae.eval().requires_grad_(False)


class Objective:
    """The loss of one batch; a class, so that it is compiled once."""

    def __init__(self, pair: state.Pair, device: str) -> None:
        self.pair, self.kind = pair, torch.device(device).type
        self.alphas = networks.schedule(device)

    def __call__(self, latents: Tensor, ids: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Weighted mean squared error of the predicted noise."""
        alpha = self.alphas[t][:, None, None, None]
        noisy = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        with torch.autocast(self.kind, torch.bfloat16):
            predicted = self.pair(noisy, t, ids)
        ratio = self.alphas[t] / (1 - self.alphas[t])
        error = (predicted.float() - noise).square().mean((1, 2, 3))
        return (ratio.clamp(max=GAMMA) / ratio * error).mean()


def train(options: argparse.Namespace) -> None:
    """Train until the step or time limit, save the state, and draw the held-out prompts."""
    torch.set_float32_matmul_precision("high")
    networks.use_fused_attention()
    begin = time.monotonic()
    concepts = load_concepts(data_dir())
    names = [record["name"] for record in concepts]
    tokenizer = Tokenizer(TOKENIZER_DIR)
    vae = load_vae(options.state, options.device)
    pair = state.Pair(options.seed).to(options.device)
    pair.unet.to(memory_format=torch.channels_last)
    decayed = [p for n, p in pair.named_parameters() if p.ndim > 1 and "embedding" not in n]
    others = [p for n, p in pair.named_parameters() if not (p.ndim > 1 and "embedding" not in n)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, options.lr, betas=(0.9, 0.99), fused=options.device.startswith("cuda"))
    average, facts = state.restore(pair, optimizer, options.local, options.state)
    step = first = facts["step"]
    warm_from = facts.get("warm_from", 0)
    sampler = Sampler(concepts, options.seed + 1000 + step, forbidden(names))
    composer = Composer(load_sprites(data_dir(), options.device), options.seed + 2000 + step)
    torch.manual_seed(options.seed + step)

    def bank(size: int, shape: tuple[int, int]) -> Bank:
        return Bank(sampler, composer, tokenizer, vae, networks.config()["scale_factor"], size, shape)

    main_bank = bank(options.bank, (256, 256))
    other_banks = [bank(max(options.bank // 32, 16), shape) for shape in SHAPES]
    log.info("banks ready after %.0f s; latents: mean %.3f, deviation %.3f", time.monotonic() - begin,
             main_bank.latents.float().mean().item(), main_bank.latents.float().std().item())  # fmt: skip
    objective = Objective(pair, options.device)
    main_objective = torch.compile(objective, dynamic=False) if options.compile else objective
    empty = torch.tensor([tokenizer.encode("")], device=options.device)
    live = [parameter.data for parameter in pair.parameters()]
    averaged = [average[name] for name, _ in pair.named_parameters()]
    bar = tqdm(total=options.total, initial=step, desc="unet", mininterval=15, ncols=100)
    smooth, ticks = None, time.monotonic()
    while step < options.total and time.monotonic() - begin < options.seconds:
        other = torch.rand(()).item() < OTHER_SHAPES
        source = other_banks[int(torch.randint(len(other_banks), ()))] if other else main_bank
        latents, ids = source.draw(options.batch * 1024 // (source.latents[0, 0].numel()) if other else options.batch)
        ids = torch.where(torch.rand(len(ids), 1, device=options.device) < DROPPED, empty, ids)
        t = torch.randint(0, 1000, (len(ids),), device=options.device)
        noise = torch.randn_like(latents) + OFFSET * torch.randn(len(ids), 4, 1, 1, device=options.device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.total, options.lr, warm_from)
        loss = (objective if other else main_objective)(latents.contiguous(memory_format=torch.channels_last), ids, t, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(pair.parameters(), 1.0)
        optimizer.step()
        torch._foreach_lerp_(averaged, live, 1 - min(EMA, (1 + step) / (10 + step)))
        step += 1
        if step % 8 == 0:
            main_bank.renew(options.renew * 8)
        if step % 64 == 0:
            for other_bank in other_banks:
                other_bank.renew(16)
        if step == first + 10:
            ticks = time.monotonic()
        if step % 50 == 0:
            smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
            bar.update(step - bar.n)
            bar.set_postfix(loss=f"{smooth:.4f}", ms=f"{(time.monotonic() - ticks) / max(1, step - first - 10) * 1e3:.0f}")
    bar.close()
    spent = time.monotonic() - begin
    facts = {"step": step, "total": options.total, "batch": options.batch, "seconds": round(facts["seconds"] + spent, 1),
             "loss": smooth}  # fmt: skip
    if options.device.startswith("cuda"):
        facts["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    state.save(pair, average, optimizer, facts, options.local, options.state)
    log.info("unet: %s", facts)
    validate(pair, average, vae, names, tokenizer, options)


def validate(
    pair: state.Pair,
    average: dict[str, Tensor],
    vae: networks.VAE,
    names: list[str],
    tokenizer: Tokenizer,
    options: argparse.Namespace,
) -> None:
    """Write a grid of the held-out prompts, sampled with the averaged weights."""
    pair.load_state_dict(average)
    prompts = specs(names)[: options.grid]
    ids, empty = (torch.tensor([tokenizer.encode(text) for text in texts], device=options.device)
                  for texts in ([caption(spec, names) for spec in prompts], [""]))  # fmt: skip
    pictures = sample_pictures(pair.unet, pair.text, vae, ids, empty, steps=options.grid_steps, guidance=4.0)
    save_grid(pictures, options.state / "grid.jpg", columns=8)


def main() -> None:
    """Parse the command line and train."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total", type=int, default=16000, help="steps of the whole training; fixes the learning rate")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop and save after this time")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--bank", type=int, default=65536, help="number of encoded pictures in the bank")
    parser.add_argument("--renew", type=int, default=48, help="pictures replaced per step")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grid", type=int, default=24)
    parser.add_argument("--grid-steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--state", type=Path, required=True, help="folder of the portable states: vae, unet")
    parser.add_argument("--local", type=Path, required=True, help="folder of the full state (optimizer included)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
