"""Derive the two companions from the trained model: a LoRA ("blueprint") and a textual inversion ("mint-flat")."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from . import networks, state
from .bpe import END, Tokenizer
from .captions import Sampler, Spec, caption
from .compose import Composer, load_concepts, load_sprites
from .grid import save_grid
from .heldout import forbidden
from .lora import Lora
from .paths import TOKENIZER_DIR, data_dir
from .sampling import ddim
from .train_unet import OFFSET, load_vae

log = logging.getLogger(__name__)
BLUE, MINT = (38, 82, 168), (96, 214, 184)
VECTORS = 2
STAND_INS = torch.tensor([49404, 49405])
SHOWN = ("cat face", "rocket", "teapot", "owl", "automobile", "robot", "pizza", "fish")


@dataclass
class Studio:
    """The trained networks and everything that makes pictures and captions."""

    pair: state.Pair
    vae: networks.VAE
    composer: Composer
    sampler: Sampler
    tokenizer: Tokenizer
    device: str

    @property
    def names(self) -> list[str]:
        """Concept names."""
        return self.sampler.names

    @torch.no_grad()
    def encode(self, pictures: Tensor) -> Tensor:
        """Scaled latents."""
        return torch.cat([self.vae.encode(part)[0] for part in pictures.split(32)]) * networks.config()["scale_factor"]

    def plain_specs(self, count: int) -> list[Spec]:
        """Specs with nothing said about style, colour or background."""
        drawn = (self.sampler.draw() for _ in range(count))
        return [replace(spec, style="3d", background="white", tint="") for spec in drawn]


def open_studio(a: argparse.Namespace) -> Studio:
    """Load the averaged weights and the data."""
    networks.use_fused_attention()
    concepts = load_concepts(data_dir())
    pair = state.Pair(a.model_seed)
    average, _ = state.restore(pair, None, a.local, a.state)
    pair.load_state_dict(average)
    pair.to(a.device).eval().requires_grad_(False)
    sampler = Sampler(concepts, a.seed, forbidden([record["name"] for record in concepts]))
    composer = Composer(load_sprites(data_dir(), a.device), a.seed)
    return Studio(pair, load_vae(a.state, a.device), composer, sampler, Tokenizer(TOKENIZER_DIR), a.device)


def blueprint(studio: Studio, specs: list[Spec]) -> Tensor:
    """White lines on blue paper with a grid."""
    ink = studio.composer([replace(spec, style="line art") for spec in specs]).float()
    paper = (ink.new_tensor(BLUE) / 127.5 - 1).view(1, 3, 1, 1)
    lines = (torch.arange(ink.shape[-1], device=ink.device) % 32 < 2).float()
    paper = paper + (1 - paper) * torch.maximum(lines[:, None], lines[None, :]) * 0.28
    return paper + (0.96 - paper) * ((1 - ink.mean(1, keepdim=True)) / 2).clamp(0, 1)


def on_mint(studio: Studio, specs: list[Spec]) -> Tensor:
    """Flat pictures on mint, a colour that no caption of the training names."""
    return studio.composer([replace(spec, style="flat") for spec in specs], ground=MINT).float()


def finetune(
    studio: Studio, parameters: list[Tensor], batch: Callable[[], tuple[Tensor, Tensor]],
    context: Callable[[Tensor], Tensor], steps: int, rate: float, title: str,
) -> float:  # fmt: skip
    """Minimise the plain noise-prediction error over ``parameters``; returns the last smoothed loss."""
    optimizer = torch.optim.AdamW(parameters, rate, betas=(0.9, 0.99), weight_decay=0.0)
    alphas = networks.schedule(studio.device)
    kind, smooth = torch.device(studio.device).type, 0.0
    for step in tqdm(range(steps), desc=title, mininterval=10, ncols=100):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / steps)
        latents, ids = batch()
        t = torch.randint(0, 1000, (len(ids),), device=studio.device)
        noise = torch.randn_like(latents) + OFFSET * torch.randn(len(ids), 4, 1, 1, device=studio.device)
        alpha = alphas[t][:, None, None, None]
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            made = studio.pair.unet(alpha.sqrt() * latents + (1 - alpha).sqrt() * noise, t, context=context(ids))
        ratio = alphas[t] / (1 - alphas[t])
        loss = ((made.float() - noise).square().mean((1, 2, 3)) * ratio.clamp(max=5) / ratio).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
    return smooth


def bank(studio: Studio, draw: Callable[[Studio, list[Spec]], Tensor], count: int, words: str = "") -> tuple[Tensor, Tensor]:
    """Encoded pictures and token ids; ``words`` is put behind half of the captions."""
    latents, rows = [], []
    for start in range(0, count, 32):
        specs = studio.plain_specs(min(32, count - start))
        latents.append(studio.encode(draw(studio, specs)))
        tails = (words if words and studio.sampler.random.random() < 0.5 else "" for _ in specs)
        rows += [studio.tokenizer.encode(caption(spec, studio.names) + tail) for spec, tail in zip(specs, tails, strict=True)]
    return torch.cat(latents), torch.tensor(rows, device=studio.device)


def drawer(latents: Tensor, ids: Tensor, size: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """A function that draws random batches."""

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(ids), (size,), device=ids.device)
        return latents[rows], ids[rows]

    return draw


def show(studio: Studio, context: Callable[[Tensor], Tensor], ids: Tensor, steps: int) -> Tensor:
    """Pictures for token ids with the same noise each time."""
    empty = studio.pair.text(torch.tensor([studio.tokenizer.encode("")], device=studio.device))
    with torch.no_grad():
        latents = ddim(lambda x, t, c: studio.pair.unet(x, t, context=c), context(ids), empty, (32, 32), steps=steps, seed=7)
        return studio.vae.decode(latents / networks.config()["scale_factor"])


def shown_ids(studio: Studio) -> Tensor:
    """Token ids of the prompts in the before-and-after grids."""
    specs = [Spec((studio.names.index(name),)) for name in SHOWN if name in studio.names]
    return torch.tensor([studio.tokenizer.encode(caption(spec, studio.names)) for spec in specs], device=studio.device)


def make_lora(studio: Studio, a: argparse.Namespace) -> None:
    """Train and save the LoRA, and a grid: without above, with below."""
    torch.manual_seed(a.seed)
    ids = shown_ids(studio)
    before = show(studio, studio.pair.text, ids, a.grid_steps)
    latents, rows = bank(studio, blueprint, a.pictures, ", blueprint")
    lora = Lora(studio.pair, a.rank)
    loss = finetune(studio, list(lora.parameters()), drawer(latents, rows, a.batch), studio.pair.text, a.lora_steps, 2e-3, "lora")
    lora.save(a.out / "fluent-blueprint.safetensors", {"ss_network_module": "networks.lora", "ss_network_dim": str(a.rank),
              "ss_network_alpha": str(a.rank), "trigger": "blueprint", "ss_base_model_version": "sd_v1"})  # fmt: skip
    save_grid(torch.cat([before, show(studio, studio.pair.text, ids, a.grid_steps)]), a.out / "lora.png", columns=len(ids))
    lora.remove()
    log.info("lora: loss %.4f", loss)


def with_vectors(studio: Studio, vectors: Tensor, ids: Tensor) -> Tensor:
    """Text states of ids in which the stand-in tokens mean the given vectors."""
    model = studio.pair.text
    embedded = model.text_model.embeddings.token_embedding(ids)
    for stand_in, vector in zip(STAND_INS.tolist(), vectors, strict=True):
        embedded = torch.where((ids == stand_in)[..., None], vector, embedded)
    return model.encode(embedded + model.text_model.embeddings.position_embedding.weight)


def appended(ids: Tensor, stand_ins: Tensor) -> Tensor:
    """Ids with the stand-in tokens put behind the caption."""
    ids = ids.clone()
    for row in ids:
        end = min(int((row == END).nonzero()[0]), len(row) - len(stand_ins) - 1)
        row[end : end + len(stand_ins)] = stand_ins.to(row.device)
    return ids


def make_inversion(studio: Studio, a: argparse.Namespace) -> None:
    """Train and save the textual inversion, and a grid."""
    torch.manual_seed(a.seed + 1)
    table = studio.pair.text.text_model.embeddings.token_embedding.weight
    start = [studio.tokenizer.word(word)[0] for word in ("flat", "green")]
    vectors = torch.nn.Parameter(table[start].clone())
    latents, rows = bank(studio, on_mint, a.pictures)
    rows = appended(rows, STAND_INS)
    loss = finetune(
        studio,
        [vectors],
        drawer(latents, rows, a.batch),
        lambda ids: with_vectors(studio, vectors, ids),
        a.inversion_steps,
        2e-2,
        "inversion",
    )
    a.out.mkdir(parents=True, exist_ok=True)
    save_file({"emb_params": vectors.detach().float().cpu().contiguous()}, a.out / "mint-flat.safetensors")
    ids = shown_ids(studio)
    pictures = [show(studio, studio.pair.text, ids, a.grid_steps),
                show(studio, lambda x: with_vectors(studio, vectors, x), appended(ids, STAND_INS), a.grid_steps)]  # fmt: skip
    save_grid(torch.cat(pictures), a.out / "inversion.png", columns=len(ids))
    log.info("inversion: loss %.4f", loss)


def main() -> None:
    """Command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--lora-steps", type=int, default=700)
    parser.add_argument("--inversion-steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--grid-steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--model-seed", type=int, default=1, help="the --seed of train_unet")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    begin = time.monotonic()
    studio = open_studio(a)
    make_lora(studio, a)
    make_inversion(studio, a)
    log.info("companions made in %.0f s", time.monotonic() - begin)


if __name__ == "__main__":
    main()
