"""Checkpoints of seeded weights.

"a" and "b" share a configuration, so that one's weights replace the other's in place. "heads" and "inpaint" have others:
the old model moves to "meta", and a new one is built.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from modules import script_callbacks, sd_hijack, shared
from tests.helpers import networks

#: As few blocks as the original classes allow: a third as much to trace, convert and compile.
UNET: dict[str, Any] = {"model_channels": 64, "channel_mult": [1], "attention_resolutions": [1], "num_res_blocks": 0}
VAE: dict[str, Any] = {"ch_mult": [1, 1], "num_res_blocks": 0}
EMBEDDINGS = {"glow": torch.linspace(-1, 1, 3 * networks.CONTEXT).reshape(3, networks.CONTEXT)}


@dataclass(frozen=True)
class Checkpoint:
    name: str
    seed: int
    config: str = "plain"
    in_channels: int = 4


_ALL = (Checkpoint("a", 0), Checkpoint("b", 1), Checkpoint("heads", 2, "heads"), Checkpoint("inpaint", 3, "inpaint", 9))
CHECKPOINTS = {checkpoint.name: checkpoint for checkpoint in _ALL}


class TextEncoder(torch.nn.Module):
    """A word's spelling gives its token; 75 words become a chunk of 77 tokens."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.transformer = networks.text_encoder(seed)
        text_model = getattr(self.transformer, "text_model", self.transformer)
        embeddings = text_model.embeddings
        embeddings.token_embedding = sd_hijack.EmbeddingsWithFixes(embeddings.token_embedding)
        self.final_layer_norm = [text_model.final_layer_norm]  # in a list, so that the module is not registered twice

    def forward(self, text: str) -> torch.Tensor:
        """[1, 77 * chunks, C]."""
        words: list[int] = []
        fixes: list[tuple[int, torch.Tensor]] = []
        for word in text.split():
            if word in EMBEDDINGS:
                fixes.append((len(words), EMBEDDINGS[word]))
                words += [0] * len(EMBEDDINGS[word])
            else:
                words.append(1 + sum((i + 1) * ord(c) for i, c in enumerate(word)) % 990)
        chunks = []
        for start in range(0, max(1, len(words)), 75):
            tokens = words[start : start + 75]
            ids = torch.tensor([[998, *tokens, *[999] * (76 - len(tokens))]])
            sd_hijack.model_hijack.fixes = [[(at - start, v) for at, v in fixes if start <= at < start + 75]]
            chunks.append(self._encode(ids))
        return torch.hstack(chunks)

    def _encode(self, ids: torch.Tensor) -> torch.Tensor:
        skip = shared.opts.CLIP_stop_at_last_layers
        outputs = self.transformer(input_ids=ids, output_hidden_states=-skip)
        if skip > 1:
            return self.final_layer_norm[0](outputs.hidden_states[-skip])
        return outputs.last_hidden_state


class FirstStage(torch.nn.Module):
    """The VAE; it encodes to the mean."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.encoder, self.decoder = networks.vae_encoder(seed, **VAE), networks.vae_decoder(seed, **VAE)

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        return self.encoder(image)[:, :4]

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        return self.decoder(latent)


class Model(torch.nn.Module):
    """One model, with the attributes by which the WebUI finds its parts."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        changes: dict[str, Any] = {"num_heads": 8} if checkpoint.config == "heads" else {}
        self.model = torch.nn.Module()
        self.model.diffusion_model = networks.unet(checkpoint.seed, checkpoint.in_channels, **UNET, **changes)
        self.first_stage_model = FirstStage(checkpoint.seed)
        self.cond_stage_model = TextEncoder(checkpoint.seed)
        self.sd_checkpoint_info, self.lowvram = checkpoint, False
        names: dict[str, int] = {}
        for name, layer in self.named_modules():
            if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.LayerNorm)):
                layer.network_layer_name = name.replace(".", "_")
                names[name] = 1
        self.eval()

    def get_learned_conditioning(self, text: str) -> torch.Tensor:
        return self.cond_stage_model(text)


model_data: Any = SimpleNamespace(sd_model=None, loaded_sd_models=[])


def load_model(checkpoint: Checkpoint) -> Any:
    old, model_data.sd_model = model_data.sd_model, None
    if old is not None:
        old.to("meta")
    model = Model(checkpoint)
    model_data.sd_model, model_data.loaded_sd_models = model, [model]
    script_callbacks.call("model_loaded", model)
    with torch.no_grad():
        model.cond_stage_model_empty_prompt = model.get_learned_conditioning("")
    return model


def reload_model_weights(name: str) -> Any:
    """Bring a checkpoint into use: only its weights are loaded if the model in use has its configuration."""
    checkpoint, model = CHECKPOINTS[name], model_data.sd_model
    if model is not None and model.sd_checkpoint_info == checkpoint:
        return model
    if model is None or model.sd_checkpoint_info.config != checkpoint.config:
        return load_model(checkpoint)
    fresh = Model(checkpoint)
    model.load_state_dict(copy.deepcopy(fresh.state_dict()))
    for layer in model.modules():  # as the LoRA extension's own load_state_dict does
        for attribute in ("network_current_names", "network_weights_backup", "network_bias_backup"):
            vars(layer).pop(attribute, None)
    model.sd_checkpoint_info = checkpoint
    script_callbacks.call("model_loaded", model)
    return model
