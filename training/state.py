"""The training state of UNet and text encoder: a full one for the same machine, a small one for other machines."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor, nn

from . import clip_text, networks, shards

log = logging.getLogger(__name__)
TABLE = "text.text_model.embeddings.token_embedding.weight"


class Pair(nn.Module):
    """UNet and text encoder, trained together."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.unet = networks.build_unet()
        self.text = clip_text.build(seed)
        self.seed = seed

    def forward(self, x: Tensor, t: Tensor, ids: Tensor) -> Tensor:
        """Predicted noise for noisy latents, steps and token ids."""
        return self.unet(x, t, context=self.text(ids))


def packed(tensors: dict[str, Tensor], untouched: Tensor) -> dict[str, Tensor]:
    """The state in float16, with only those rows of the token table that training has changed."""
    table = tensors[TABLE].cpu()
    rows = (table != untouched).any(1).nonzero()[:, 0]
    small = shards.half({name: tensor for name, tensor in tensors.items() if name != TABLE})
    return small | {TABLE: table[rows].half(), "rows": rows.int()}


def unpacked(tensors: dict[str, Tensor], untouched: Tensor) -> dict[str, Tensor]:
    """The inverse of ``packed``, in float32."""
    table = untouched.clone()
    table[tensors["rows"].long()] = tensors[TABLE].float()
    return {name: tensor.float() for name, tensor in tensors.items() if name not in (TABLE, "rows")} | {TABLE: table}


def initial_table(seed: int) -> Tensor:
    """The token table before training."""
    return clip_text.build(seed).state_dict()["text_model.embeddings.token_embedding.weight"]


def save(
    pair: Pair, average: dict[str, Tensor], optimizer: torch.optim.Optimizer, facts: dict, local: Path, portable: Path
) -> None:
    """Write the full state to ``local`` and the small one (at most 15 MiB per file) to ``portable``."""
    local.mkdir(parents=True, exist_ok=True)
    full = {"pair": pair.state_dict(), "average": average, "optimizer": optimizer.state_dict(), "facts": facts}
    torch.save(full, local / "full.pt.new")
    (local / "full.pt.new").replace(local / "full.pt")
    untouched = initial_table(pair.seed)
    small = {f"now.{k}": v for k, v in packed(pair.state_dict(), untouched).items()}
    small |= {f"average.{k}": v for k, v in packed(average, untouched).items()}
    shards.save(small, portable, "unet", facts)


def restore(pair: Pair, optimizer: torch.optim.Optimizer | None, local: Path, portable: Path) -> tuple[dict[str, Tensor], dict]:
    """Load the newer of the two states; returns the average weights and the facts (step 0 if there is no state)."""
    device = next(pair.parameters()).device
    small = shards.load(portable, "unet")
    full = torch.load(local / "full.pt", map_location="cpu", weights_only=True) if (local / "full.pt").exists() else None
    if full is not None and (small is None or full["facts"]["step"] >= small[1]["step"]):
        pair.load_state_dict(full["pair"])
        if optimizer is not None:
            optimizer.load_state_dict(full["optimizer"])
        average, facts = full["average"], full["facts"]
    elif small is not None:
        untouched = initial_table(pair.seed)
        both = {
            kind: {k.removeprefix(f"{kind}."): v for k, v in small[0].items() if k.startswith(f"{kind}.")}
            for kind in ("now", "average")
        }
        pair.load_state_dict(unpacked(both["now"], untouched))
        average, facts = unpacked(both["average"], untouched), small[1] | {"warm_from": small[1]["step"]}
    else:
        average, facts = {name: tensor.clone() for name, tensor in pair.state_dict().items()}, {"step": 0, "seconds": 0.0}
    log.info("training continues from step %d", facts["step"])
    return {name: tensor.to(device) for name, tensor in average.items()}, facts
