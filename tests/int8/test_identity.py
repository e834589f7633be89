"""Which weights share a recipe."""

from __future__ import annotations

import torch

from ov_backend.int8.identity import architecture_of, checkpoint_of
from tests.helpers.layers_in_8_bits import Denoiser


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in Denoiser(seed).named_parameters()}


def test_a_lora_keeps_the_checkpoint_and_a_training_changes_it() -> None:
    mixed, trained = weights(), weights()
    mixed["gate.weight"] += 1
    mixed["first.weight"] *= 2
    trained["norm.bias"] += 1e-6
    assert checkpoint_of(mixed) == checkpoint_of(weights())
    assert checkpoint_of(trained) != checkpoint_of(weights())


def test_without_biases_all_weights_count() -> None:
    matrices = {name: tensor for name, tensor in weights().items() if tensor.dim() > 1}
    changed = {**matrices, "gate.weight": matrices["gate.weight"] + 1}
    assert checkpoint_of(matrices) != checkpoint_of(changed)


def test_an_architecture_is_its_class_names_and_shapes() -> None:
    half = {name: tensor.half() for name, tensor in weights().items()}
    assert architecture_of("UNet", weights()) == architecture_of("UNet", half)
    assert architecture_of("UNet", weights()) != architecture_of("Other", weights())
    assert architecture_of("UNet", weights()) != architecture_of("UNet", {**weights(), "x": torch.ones(1)})


def test_bfloat16_and_scalar_weights_have_a_checkpoint() -> None:
    tensors = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.tensor(2.0)}
    assert checkpoint_of(tensors) != checkpoint_of({**tensors, "a": torch.zeros(3, dtype=torch.bfloat16)})
    assert checkpoint_of({"b": torch.tensor(2.0)}) != checkpoint_of({"b": torch.tensor(3.0)})
