"""Checkpoint files: loaded networks compute what the original ones do, and other files are refused with a reason."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend.core.errors import CheckpointError
from tests.helpers import networks

pytest.importorskip("diffusers")

from safetensors.torch import save_file

from ov_backend.checkpoint import TOKENIZER, keys, load_any_pipeline, load_pipeline, read_header
from ov_backend.checkpoint.loader import check_weights, read_tokenizer
from tests.helpers.random_checkpoint import write_random_checkpoint

UNET, VAE, CLIP = "model.diffusion_model.", "first_stage_model.", "cond_stage_model.transformer."
WIDTH = networks.CONTEXT


def named(prefix: str, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor.contiguous() for name, tensor in module.state_dict().items()}


@pytest.fixture(scope="module")
def originals() -> dict[str, torch.nn.Module]:
    """The original networks: ldm's UNet and VAE, and transformers' text encoder with CLIP's whole vocabulary."""
    from transformers import CLIPTextConfig, CLIPTextModel

    text = CLIPTextConfig(
        vocab_size=49408, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return {
        "unet": networks.unet(),
        "encoder": networks.vae_encoder(1),
        "decoder": networks.vae_decoder(2),
        "quant": networks.seeded(torch.nn.Conv2d(8, 8, 1), 3),
        "post": networks.seeded(torch.nn.Conv2d(4, 4, 1), 4),
        "text": networks.seeded(CLIPTextModel(text), 5),
    }


def tensors_of(originals: dict[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    text = {CLIP + keys.clip_name(name): tensor for name, tensor in originals["text"].named_parameters()}
    return {
        **named(UNET, originals["unet"]),
        **named(f"{VAE}encoder.", originals["encoder"]),
        **named(f"{VAE}decoder.", originals["decoder"]),
        **named(f"{VAE}quant_conv.", originals["quant"]),
        **named(f"{VAE}post_quant_conv.", originals["post"]),
        **text,
        "betas": torch.zeros(1000),
    }


@pytest.fixture
def write(tmp_path: Path, originals: dict[str, torch.nn.Module]) -> Callable[..., Path]:
    """Write the originals as a checkpoint file with .yaml and text configuration; changes are merged, None removes."""

    def make(changes: dict[str, torch.Tensor | None] | None = None, heads: bool = True) -> Path:
        path = tmp_path / "model.safetensors"
        merged = {**tensors_of(originals), **(changes or {})}
        save_file({name: tensor for name, tensor in merged.items() if tensor is not None}, str(path))
        if heads:
            params = {"unet_config": {"params": {"num_heads": 4}}, "image_size": 16, "scale_factor": 0.5, "linear_end": 0.02}
            path.with_suffix(".yaml").write_text(json.dumps({"model": {"params": params}}))
            folder = path.with_suffix("") / "tokenizer"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps({"hidden_size": WIDTH, "num_attention_heads": 4}))
        return path

    return make


def test_loaded_networks_compute_what_the_originals_do(write: Callable[..., Path], originals: dict[str, Any]) -> None:
    pipe = load_pipeline(write())
    x, context, ids = torch.randn(2, 4, 8, 8), torch.randn(2, 77, WIDTH), torch.randint(0, 49408, (1, 77))
    steps, image = torch.tensor([7, 900]), torch.randn(1, 3, 16, 16)
    pairs = [
        (pipe.unet(x, steps, encoder_hidden_states=context).sample, originals["unet"](x, steps, context=context)),
        (pipe.vae.decode(x).sample, originals["decoder"](originals["post"](x))),
        (pipe.vae.encode(image).latent_dist.parameters, originals["quant"](originals["encoder"](image))),
        (pipe.text_encoder(ids).last_hidden_state, originals["text"](ids).last_hidden_state),
    ]
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert pipe.vae.config.scaling_factor == 0.5
    assert pipe.scheduler.config.beta_end == 0.02
    assert pipe.scheduler.config.prediction_type == "epsilon"
    assert pipe.unet.config.sample_size == 16
    assert all(p.dtype is torch.float32 and not p.is_meta for p in pipe.unet.parameters())


def test_a_half_precision_file_loads_in_f32(write: Callable[..., Path], originals: dict[str, Any]) -> None:
    halves = {name: tensor.half() for name, tensor in tensors_of(originals).items() if tensor.is_floating_point()}
    unet = load_pipeline(write(halves)).unet
    assert unet.dtype is torch.float32
    weight = originals["unet"].state_dict()["input_blocks.0.0.weight"]
    assert torch.equal(unet.conv_in.weight, weight.half().float())


@pytest.mark.usefixtures("no_connection")
def test_loading_makes_no_connection(write: Callable[..., Path]) -> None:
    assert load_pipeline(write()).tokenizer("a fox").input_ids[0] == 49406


def test_without_a_yaml_the_heads_are_stable_diffusions(write: Callable[..., Path]) -> None:
    pipe = load_pipeline(write(heads=False))
    assert pipe.unet.config.attention_head_dim == [8, 8]
    assert pipe.vae.config.scaling_factor == 0.18215


def test_random_checkpoint_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    paths = [(tmp_path / f"{i}.safetensors", seed) for i, seed in enumerate((1, 1, 2))]
    first, repeated, other = (write_random_checkpoint(path, seed, text={"num_hidden_layers": 1}) for path, seed in paths)
    assert first.read_bytes() == repeated.read_bytes() != other.read_bytes()


def test_open_clip_text_model_is_converted(tmp_path: Path) -> None:
    """SD2's and SDXL's second text encoder: query, key and value are one matrix, and the projection is transposed."""
    names = {
        "text_model.encoder.layers.3.self_attn.k_proj.weight": "transformer.resblocks.3.attn.in_proj_weight#1",
        "text_model.encoder.layers.0.self_attn.out_proj.bias": "transformer.resblocks.0.attn.out_proj.bias",
        "encoder.layers.0.mlp.fc2.weight": "transformer.resblocks.0.mlp.c_proj.weight",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "text_model.final_layer_norm.weight": "ln_final.weight",
        "text_projection.weight": "text_projection",
    }
    assert {name: keys.open_clip_name(name) for name in names} == names


# ---------------------------------------------------------------- bad input


def a_lora() -> dict[str, torch.Tensor]:
    return {"lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight": torch.zeros(4, 4)}


OTHER_FILES: list[tuple[Callable[[], dict[str, torch.Tensor]], str]] = [
    (a_lora, "is a LoRA"),
    (lambda: {"decoder.conv_in.weight": torch.zeros(1), "encoder.conv_in.weight": torch.zeros(1)}, "is a VAE"),
    (lambda: {"first_stage_model.decoder.conv_in.weight": torch.zeros(1)}, "is a VAE"),
    (lambda: {"double_blocks.0.img_mod.lin.weight": torch.zeros(1)}, "is a Flux model"),
    (lambda: {f"{UNET}double_blocks.0.img_mod.lin.weight": torch.zeros(1)}, "is a Flux model"),
    (lambda: {f"{UNET}joint_blocks.0.x_block.attn.qkv.weight": torch.zeros(1)}, "is a Stable Diffusion 3 model"),
    (lambda: {"text_model.encoder.layers.0.mlp.fc1.weight": torch.zeros(1)}, "is a text encoder alone"),
    (lambda: {"down_blocks.0.resnets.0.conv1.weight": torch.zeros(1)}, "diffusers folder"),
    (lambda: {"emb_params": torch.zeros(1, 4)}, "embedding"),
    (lambda: {"weight": torch.zeros(1)}, "is no checkpoint: its tensors are named like 'weight'"),
    (lambda: {f"{UNET}out.2.weight": torch.zeros(1)}, "holds no VAE"),
    (lambda: {f"{UNET}a": torch.zeros(1), f"{VAE}a": torch.zeros(1)}, "holds no known text encoder"),
    (lambda: {f"{UNET}a": torch.zeros(1), f"{VAE}a": torch.zeros(1), f"{CLIP}a": torch.zeros(1)}, "unknown architecture"),
    (lambda: {f"{UNET}a": torch.zeros(1), "conditioner.embedders.0.model.a": torch.zeros(1)}, "SDXL refiner"),
]


def assert_refused(path: Path, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        load_pipeline(path)
    message = str(caught.value)
    assert path.name in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("make,words", OTHER_FILES, ids=lambda value: value if isinstance(value, str) else "")
def test_other_files_are_refused_with_what_they_are(make: Callable[[], dict[str, Any]], words: str, tmp_path: Path) -> None:
    save_file(make(), str(tmp_path / "file.safetensors"))
    assert_refused(tmp_path / "file.safetensors", words)


class _Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", ["model.ckpt", "model.pt", "disguised.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_never_opened(name: str, zipped: bool, tmp_path: Path) -> None:
    path, trace = tmp_path / name, tmp_path / "executed"
    if zipped:
        torch.save(_Bomb(trace), path)
    else:
        path.write_bytes(pickle.dumps(_Bomb(trace)))
    assert_refused(path, "is a pickle")
    assert not trace.exists()


@pytest.mark.parametrize("given", [None, "", b"x", 5])
def test_what_is_no_path_is_refused(given: Any) -> None:
    for load in (load_pipeline, load_any_pipeline):
        with pytest.raises(CheckpointError, match="is no path of a checkpoint; give that of one"):
            load(given)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none.safetensors", "is no file")


def test_a_file_cut_at_any_length_is_damaged(write: Callable[..., Path]) -> None:
    whole = write().read_bytes()
    path = write()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 5, 8, 100, header - 1, header, header + 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert_refused(path, "is damaged")
    path.write_bytes(whole + b"\0")
    assert_refused(path, "is damaged")


OFFSET_OF_MANY_DIGITS = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, ' + b"9" * 4300 + b"]}}"
HEADERS = [b"[]", b"{", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', OFFSET_OF_MANY_DIGITS]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_an_invalid_header_is_refused(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    assert_refused(path, "is not a safetensors file")


BEGINNINGS = {
    b"<!DOCTYPE html><html>Not found</html>": "is a web page, .*; download the file itself again",
    b"\n <html lang='en'>Log in to download this model": "is a web page",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 9\n": "is a pointer of Git LFS .*; run git lfs pull",
    b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0": "is a GGUF file",
    b'{"error": "Access to model is restricted"}': "is a file of JSON",
    b"<?xml version='1.0'?><net name='Model0'>": "is an XML file",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR": "is a picture",
    b"hello, this is some text": "is not a safetensors file",
}


@pytest.mark.parametrize("beginning", BEGINNINGS, ids=list(BEGINNINGS.values()))
def test_what_another_file_is_is_said_with_what_to_do(beginning: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(beginning + b"\0" * 100)
    assert_refused(path, BEGINNINGS[beginning])


def test_a_header_whose_length_begins_like_another_file_is_read(write: Callable[..., Path]) -> None:
    path = write()
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for first in (b"{", b"\n", b"["):
        padding = (first[0] - length) % 256
        header = whole[8 : 8 + length] + b" " * padding
        path.write_bytes((length + padding).to_bytes(8, "little") + header + whole[8 + length :])
        assert path.read_bytes()[:1] == first
        assert read_header(path).family == "sd1"


def test_an_address_and_an_archive_are_no_checkpoints(tmp_path: Path) -> None:
    assert_refused(Path("https://example.org/a.safetensors"), "^https://example.org/a.safetensors is an address, and nothing is")
    (tmp_path / "model.zip").write_bytes(b"PK\x03\x04")
    assert_refused(tmp_path / "model.zip", "is a packed archive; unpack it")


def test_a_folder_is_no_file_and_a_checkpoint_in_it_is_proposed(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "a_lora.safetensors").touch()
    assert_refused(tmp_path, "is a folder without a checkpoint; give one .safetensors file of a Stable Diffusion")
    write().rename(tmp_path / "model.safetensors")
    assert_refused(tmp_path, "is a folder; give a file in it, such as model.safetensors")
    (tmp_path / "model_index.json").touch()
    assert_refused(tmp_path, "is a diffusers folder, .* In Python, DiffusionPipeline.from_pretrained reads")


CONTRADICTIONS = [(b'"shape":[4]', b'"shape":[5]'), *((b'"dtype":"F32"', b'"dtype":"%s"' % new) for new in (b"F16", b"F17"))]


@pytest.mark.parametrize("old,new", CONTRADICTIONS)
def test_a_header_that_contradicts_itself_is_damaged(write: Callable[..., Path], old: bytes, new: bytes) -> None:
    path = write()
    whole = path.read_bytes()
    at = whole.index(old, whole.index(b"out.2.bias"))
    path.write_bytes(whole[:at] + new + whole[at + len(old) :])
    assert_refused(path, "is damaged")
    with pytest.raises(CheckpointError, match="is damaged"):
        check_weights(path)


@pytest.mark.parametrize("number", [lambda own: own + 500_000, lambda own: own % 49407, lambda own: 0], ids=["high", "same", "0"])
def test_a_vocabulary_that_does_not_fit_its_text_encoder_is_refused(
    checkpoint: Path, tmp_path: Path, number: Callable[[int], int]
) -> None:
    path = Path(shutil.copy(checkpoint, tmp_path))
    shutil.copytree(TOKENIZER, tmp_path / "tokenizer")
    vocabulary = json.loads((TOKENIZER / "vocab.json").read_text())
    (tmp_path / "tokenizer" / "vocab.json").write_text(json.dumps({word: number(own) for word, own in vocabulary.items()}))
    with pytest.raises(CheckpointError, match=r"in vocab\.json must differ and be below 49408; correct or remove it"):
        read_tokenizer(path)


def test_other_architectures_are_refused(write: Callable[..., Path]) -> None:
    assert_refused(write({f"{UNET}input_blocks.0.0.weight": torch.zeros(32, 9, 3, 3)}), "inpainting")
    assert_refused(write({f"{UNET}out.2.bias": None}), r"out\.2\.bias \[4\] is missing")
    assert_refused(write({f"{UNET}extra.weight": torch.zeros(1)}), "fit nowhere")
    assert_refused(write({f"{UNET}out.2.bias": torch.zeros(5)}), r"is \[5\], \[4\] is expected")
    assert_refused(write({f"{CLIP}text_model.embeddings.token_embedding.weight": torch.zeros(100, WIDTH)}), "100 words")
    assert_refused(write({f"{VAE}encoder.down.0.attn.0.q.weight": torch.zeros(1)}), "VAE is of another kind")


def test_shapes_that_diffusers_builds_no_network_of_are_refused(write: Callable[..., Path]) -> None:
    path = write({f"{UNET}input_blocks.3.0.out_layers.3.weight": torch.zeros(100, 64, 3, 3)})
    assert_refused(path, r"unknown architecture \(no network can be built from its shapes: .*\); Stable Diffusion 1, 2 and XL")


def test_a_name_of_any_length_and_lines_is_one_short_sentence(write: Callable[..., Path]) -> None:
    path = write({UNET + "extra\n" * 1000: torch.zeros(1)})
    with pytest.raises(CheckpointError, match="fit nowhere") as refused:
        load_pipeline(path)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


def test_an_invalid_yaml_is_refused(write: Callable[..., Path]) -> None:
    path = write()
    path.with_suffix(".yaml").write_text("just words")
    with pytest.raises(CheckpointError, match=r"model\.yaml is no configuration"):
        load_pipeline(path)


def test_families_are_distinguished(tmp_path: Path) -> None:
    one = torch.zeros(1)
    texts = {
        "sd1": (CLIP,),
        "sd2": ("cond_stage_model.model.",),
        "sdxl": ("conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."),
    }
    for family, prefixes in texts.items():
        path = tmp_path / f"{family}.safetensors"
        save_file({f"{prefix}a": one.clone() for prefix in (UNET, VAE, *prefixes)}, str(path))
        assert read_header(path).family == family
