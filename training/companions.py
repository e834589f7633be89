"""Trains the two companions of the model: a LoRA ("blueprint") and a textual inversion ("mint-flat")."""

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
#: Ids of rare tokens that represent the vectors of the textual inversion.
PLACEHOLDERS = torch.tensor([49404, 49405])
SHOWN = ("cat face", "rocket", "teapot", "owl", "automobile", "robot", "pizza", "fish")


@dataclass
class TrainedModel:
    """The trained networks, and the sources of pictures and captions."""

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
        """Specs with the default style, tint and background."""
        drawn = (self.sampler.draw() for _ in range(count))
        return [replace(spec, style="3d", background="white", tint="") for spec in drawn]


def load_trained(options: argparse.Namespace) -> TrainedModel:
    """Load the averaged weights and the data."""
    networks.use_fused_attention()
    concepts = load_concepts(data_dir())
    pair = state.Pair(options.model_seed)
    average, _ = state.restore(pair, None, options.local, options.state)
    pair.load_state_dict(average)
    pair.to(options.device).eval().requires_grad_(False)
    sampler = Sampler(concepts, options.seed, forbidden([record["name"] for record in concepts]))
    composer = Composer(load_sprites(data_dir(), options.device), options.seed)
    vae = load_vae(options.state, options.device)
    return TrainedModel(pair, vae, composer, sampler, Tokenizer(TOKENIZER_DIR), options.device)


def blueprint(model: TrainedModel, specs: list[Spec]) -> Tensor:
    """White lines on blue paper with a grid."""
    ink = model.composer([replace(spec, style="line art") for spec in specs]).float()
    paper = (ink.new_tensor(BLUE) / 127.5 - 1).view(1, 3, 1, 1)
    lines = (torch.arange(ink.shape[-1], device=ink.device) % 32 < 2).float()
    paper = paper + (1 - paper) * torch.maximum(lines[:, None], lines[None, :]) * 0.28
    return paper + (0.96 - paper) * ((1 - ink.mean(1, keepdim=True)) / 2).clamp(0, 1)


def on_mint(model: TrainedModel, specs: list[Spec]) -> Tensor:
    """Flat pictures on mint, a colour that no training caption names."""
    return model.composer([replace(spec, style="flat") for spec in specs], ground=MINT).float()


def finetune(
    model: TrainedModel, parameters: list[Tensor], batch: Callable[[], tuple[Tensor, Tensor]],
    context: Callable[[Tensor], Tensor], steps: int, rate: float, title: str,
) -> float:  # fmt: skip
    """Minimise the noise-prediction error over ``parameters``; returns the smoothed loss."""
    optimizer = torch.optim.AdamW(parameters, rate, betas=(0.9, 0.99), weight_decay=0.0)
    alphas = networks.schedule(model.device)
    kind, smooth = torch.device(model.device).type, 0.0
    for step in tqdm(range(steps), desc=title, mininterval=10, ncols=100):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / steps)
        latents, ids = batch()
        t = torch.randint(0, 1000, (len(ids),), device=model.device)
        noise = torch.randn_like(latents) + OFFSET * torch.randn(len(ids), 4, 1, 1, device=model.device)
        alpha = alphas[t][:, None, None, None]
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            predicted = model.pair.unet(alpha.sqrt() * latents + (1 - alpha).sqrt() * noise, t, context=context(ids))
        ratio = alphas[t] / (1 - alphas[t])
        loss = ((predicted.float() - noise).square().mean((1, 2, 3)) * ratio.clamp(max=5) / ratio).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
    return smooth


def bank(
    model: TrainedModel, draw: Callable[[TrainedModel, list[Spec]], Tensor], count: int, words: str = ""
) -> tuple[Tensor, Tensor]:
    """Encoded pictures and token ids; ``words`` is appended to half of the captions."""
    latents, rows = [], []
    for start in range(0, count, 32):
        specs = model.plain_specs(min(32, count - start))
        latents.append(model.encode(draw(model, specs)))
        tails = (words if words and model.sampler.random.random() < 0.5 else "" for _ in specs)
        rows += [model.tokenizer.encode(caption(spec, model.names) + tail) for spec, tail in zip(specs, tails, strict=True)]
    return torch.cat(latents), torch.tensor(rows, device=model.device)


def drawer(latents: Tensor, ids: Tensor, size: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """A function that returns random batches."""

    def draw() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(ids), (size,), device=ids.device)
        return latents[rows], ids[rows]

    return draw


def show(model: TrainedModel, context: Callable[[Tensor], Tensor], ids: Tensor, steps: int) -> Tensor:
    """Pictures for token ids, always from the same noise."""
    empty = model.pair.text(torch.tensor([model.tokenizer.encode("")], device=model.device))
    with torch.no_grad():
        latents = ddim(lambda x, t, c: model.pair.unet(x, t, context=c), context(ids), empty, (32, 32), steps=steps, seed=7)
        return model.vae.decode(latents / networks.config()["scale_factor"])


def shown_ids(model: TrainedModel) -> Tensor:
    """Token ids of the prompts in the before-and-after grids."""
    specs = [Spec((model.names.index(name),)) for name in SHOWN if name in model.names]
    return torch.tensor([model.tokenizer.encode(caption(spec, model.names)) for spec in specs], device=model.device)


def make_lora(model: TrainedModel, options: argparse.Namespace) -> None:
    """Train and save the LoRA, and a grid of pictures without it (above) and with it (below)."""
    torch.manual_seed(options.seed)
    ids = shown_ids(model)
    before = show(model, model.pair.text, ids, options.grid_steps)
    latents, rows = bank(model, blueprint, options.pictures, ", blueprint")
    lora = Lora(model.pair, options.rank)
    draw = drawer(latents, rows, options.batch)
    loss = finetune(model, list(lora.parameters()), draw, model.pair.text, options.lora_steps, 2e-3, "lora")
    metadata = {"ss_network_module": "networks.lora", "ss_network_dim": str(options.rank), "ss_network_alpha": str(options.rank),
                "trigger": "blueprint", "ss_base_model_version": "sd_v1"}  # fmt: skip
    lora.save(options.out / "fluent-blueprint.safetensors", metadata)
    after = show(model, model.pair.text, ids, options.grid_steps)
    save_grid(torch.cat([before, after]), options.out / "lora.png", columns=len(ids))
    lora.remove()
    log.info("lora: loss %.4f", loss)


def with_vectors(model: TrainedModel, vectors: Tensor, ids: Tensor) -> Tensor:
    """The text encoder's states for ids in which the placeholders have the given vectors."""
    encoder = model.pair.text
    embedded = encoder.text_model.embeddings.token_embedding(ids)
    for placeholder, vector in zip(PLACEHOLDERS.tolist(), vectors, strict=True):
        embedded = torch.where((ids == placeholder)[..., None], vector, embedded)
    return encoder.encode(embedded + encoder.text_model.embeddings.position_embedding.weight)


def appended(ids: Tensor, placeholders: Tensor) -> Tensor:
    """Ids with the placeholders appended to the caption."""
    ids = ids.clone()
    for row in ids:
        end = min(int((row == END).nonzero()[0]), len(row) - len(placeholders) - 1)
        row[end : end + len(placeholders)] = placeholders.to(row.device)
    return ids


def make_inversion(model: TrainedModel, options: argparse.Namespace) -> None:
    """Train and save the textual inversion, and a grid of pictures without it (above) and with it (below)."""
    torch.manual_seed(options.seed + 1)
    table = model.pair.text.text_model.embeddings.token_embedding.weight
    start = [model.tokenizer.word(word)[0] for word in ("flat", "green")]
    vectors = torch.nn.Parameter(table[start].clone())
    latents, rows = bank(model, on_mint, options.pictures)
    rows = appended(rows, PLACEHOLDERS)
    loss = finetune(
        model,
        [vectors],
        drawer(latents, rows, options.batch),
        lambda ids: with_vectors(model, vectors, ids),
        options.inversion_steps,
        2e-2,
        "inversion",
    )
    options.out.mkdir(parents=True, exist_ok=True)
    save_file({"emb_params": vectors.detach().float().cpu().contiguous()}, options.out / "mint-flat.safetensors")
    ids = shown_ids(model)
    before = show(model, model.pair.text, ids, options.grid_steps)
    ids_with_vectors = appended(ids, PLACEHOLDERS)
    after = show(model, lambda x: with_vectors(model, vectors, x), ids_with_vectors, options.grid_steps)
    save_grid(torch.cat([before, after]), options.out / "inversion.png", columns=len(ids))
    log.info("inversion: loss %.4f", loss)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that :func:`load_trained` needs, except ``--seed``, and the output folder."""
    parser.add_argument("--model-seed", type=int, default=1, help="the --seed of train_unet")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)


def main() -> None:
    """Parse the command line and train the companions."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--lora-steps", type=int, default=700)
    parser.add_argument("--inversion-steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--grid-steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=5)
    add_model_arguments(parser)
    options = parser.parse_args()
    begin = time.monotonic()
    model = load_trained(options)
    make_lora(model, options)
    make_inversion(model, options)
    log.info("companions made in %.0f s", time.monotonic() - begin)


if __name__ == "__main__":
    main()
