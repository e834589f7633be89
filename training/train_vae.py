"""Trains the VAE with L1, image gradients, classifier features and a small KL term, then standardises its latents."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from . import networks, shards
from .captions import Sampler
from .classifier import perceptual
from .compose import Composer, load_concepts, load_sprites
from .heldout import forbidden, specs
from .paths import data_dir
from .train_classifier import load as load_classifier

log = logging.getLogger(__name__)
KL_WEIGHT, GRADIENT_WEIGHT, PERCEPTUAL_WEIGHT = 5e-4, 0.7, 0.15
LEARNING_RATE = 8e-4


def gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    """Differences to the right and to the lower neighbour."""
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def reconstruction_loss(reconstructed: Tensor, real: Tensor) -> Tensor:
    """L1 of pixels and of image gradients."""
    edges = sum((a - b).abs().mean() for a, b in zip(gradients(reconstructed), gradients(real), strict=True))
    return (reconstructed - real).abs().mean() + GRADIENT_WEIGHT * edges


def psnr(reconstructed: Tensor, real: Tensor) -> Tensor:
    """PSNR of each picture in dB, for pictures in -1..1 that are rounded to 8 bits."""
    a, b = (((x.clamp(-1, 1) + 1) * 127.5).round() for x in (reconstructed.float(), real.float()))
    return 20 * torch.log10(255 / (a - b).square().mean((1, 2, 3)).sqrt().clamp(min=1e-3))


@torch.no_grad()
def standardise(vae: networks.VAE, pictures: Tensor, scale: float) -> dict[str, list[float]]:
    """Fold a shift and a scale per latent channel into the two 1x1 convolutions around the latents.

    Afterwards the scaled latents have zero mean and unit deviation, and reconstructions are unchanged.
    """
    moments = torch.cat([vae.encode(part)[0] for part in pictures.split(32)])
    mean, deviation = moments.mean((0, 2, 3)), moments.std((0, 2, 3))
    factor = 1 / (deviation * scale)
    channels = len(mean)
    quant, post = vae.quant_conv, vae.post_quant_conv
    quant.weight[:channels] *= factor[:, None, None, None]
    quant.bias[:channels] = (quant.bias[:channels] - mean) * factor
    quant.bias[channels:] += 2 * factor.log()
    post.bias += post.weight[:, :, 0, 0] @ mean
    post.weight /= factor[None, :, None, None]
    return {"mean": mean.tolist(), "deviation": deviation.tolist()}


def train(options: argparse.Namespace) -> None:
    """Train for ``options.seconds``, standardise, measure and save."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    concepts = load_concepts(data_dir())
    names = [record["name"] for record in concepts]
    sampler = Sampler(concepts, options.seed, forbidden(names))
    composer = Composer(load_sprites(data_dir(), options.device), options.seed)
    classifier = load_classifier("perceptual", options.state, options.device)
    vae = networks.build_vae().to(options.device, memory_format=torch.channels_last)
    average = torch.optim.swa_utils.AveragedModel(vae, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998))
    kind = torch.device(options.device).type

    def objective(real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(kind, torch.bfloat16):
            reconstructed, mean, logvar = vae(real, noise)
            feature_loss = perceptual(classifier, reconstructed, real)
        reconstructed, mean, logvar = reconstructed.float(), mean.float(), logvar.float()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        pixel_loss = reconstruction_loss(reconstructed, real)
        return pixel_loss + PERCEPTUAL_WEIGHT * feature_loss + KL_WEIGHT * kl, pixel_loss.detach()

    step_loss = torch.compile(objective, dynamic=False) if options.compile else objective
    optimizer = torch.optim.AdamW(vae.parameters(), LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-3, fused=kind == "cuda")
    begin, step = time.monotonic(), 0
    bar = tqdm(total=int(options.seconds), desc="vae", mininterval=10, ncols=100, unit="s")
    while (spent := time.monotonic() - begin) < options.seconds and step < options.steps:
        done = spent / options.seconds
        whole = done > 0.7
        real = composer([sampler.draw() for _ in range(options.batch)]).float()
        if not whole:
            top, left = (8 * int(n) for n in torch.randint(0, 17, (2,)))
            real = real[..., top : top + 128, left : left + 128]
            real = torch.where(torch.rand(len(real), 1, 1, 1, device=real.device) < 0.5, real.flip(3), real)
        real = real.contiguous(memory_format=torch.channels_last)
        noise = torch.randn(len(real), 4, real.shape[2] // 8, real.shape[3] // 8, device=real.device)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / 200) * max(0.02, min(1.0, 2.2 * (1 - done)))
        loss, pixels = step_loss(real, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(vae)
        step += 1
        if step % 20 == 0:
            bar.n = int(spent)
            bar.set_postfix(step=step, loss=f"{loss.item():.4f}", l1=f"{pixels.item():.4f}")
    bar.close()
    finish(average.module, composer, sampler, names, options, {"steps": step, "seconds": round(time.monotonic() - begin, 1)})


@torch.no_grad()
def finish(
    vae: networks.VAE, composer: Composer, sampler: Sampler, names: list[str], options: argparse.Namespace, facts: dict
) -> None:
    """Standardise the latents, measure on held-out combinations, and save weights, figures and a grid of pictures."""
    vae.eval().float()
    pictures = torch.cat([composer([sampler.draw() for _ in range(32)]).float() for _ in range(options.measure)])
    facts["latents"] = standardise(vae, pictures, networks.config()["scale_factor"])
    held_out = (
        [*specs(names), *(sampler.draw_held_out() for _ in range(40))] if len(names) > 100 else [sampler.draw() for _ in range(8)]
    )
    real = composer(held_out).float()
    reconstructed = torch.cat([vae.decode(vae.encode(part)[0]) for part in real.split(16)])
    values = psnr(reconstructed, real)
    facts["psnr_db"] = {"mean": values.mean().item(), "worst": values.min().item(), "best": values.max().item()}
    shards.save(vae.state_dict(), options.state, "vae", facts)
    log.info("vae: %s", facts)
    from .grid import save_grid

    save_grid(torch.stack([real[:24], reconstructed[:24]], 1).flatten(0, 1), options.state / "vae.jpg", columns=8)


def main() -> None:
    """Parse the command line and train."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", type=int, default=16, help="batches of 32 pictures for the latents' statistics")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--state", type=Path, required=True, help="folder of states: reads perceptual, writes vae")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
