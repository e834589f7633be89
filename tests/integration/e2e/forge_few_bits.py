"""Flux and Chroma with weights in few bits, from the small files that ``checkpoints.py`` writes.

``FORGE/venv/bin/python forge_few_bits.py FORGE``, for Forge's own package gguf writes the files. With bitsandbytes 0.48 in
that environment, nf4 and fp4 too.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

FORGE = Path(sys.argv[1])
sys.path.insert(0, str(FORGE / "packages_3rdparty"))
import gguf  # noqa: E402

MODELS = FORGE / "models" / "Stable-diffusion"


def blocks_of_q4_k(weight: np.ndarray) -> np.ndarray:
    """Random blocks of the spread of a weight: 256 numbers of 4 bits, behind two scales and twelve bytes of them."""
    blocks = np.random.default_rng(0).integers(0, 256, (weight.size // 256, 144), dtype=np.uint8)
    scale = weight.std() / 256
    for place, value in (0, scale), (2, 7.5 * scale):
        blocks[:, place : place + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return blocks.reshape(*weight.shape[:-1], -1)


def write_gguf(name: str, kind: str) -> None:
    """Write one checkpoint's matrices in blocks, and all else in float32."""
    writer = gguf.GGUFWriter(MODELS / f"e2e-{name}-gguf-{kind}.gguf", "flux")
    for key, tensor in load_file(MODELS / f"e2e-{name}.safetensors").items():
        weight = tensor.float().numpy()
        if weight.ndim < 2 or weight.shape[-1] % 256:
            writer.add_tensor(key, weight)
            continue
        blocked = blocks_of_q4_k(weight) if kind == "Q4_K" else gguf.quantize(weight, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(key, blocked, raw_dtype=gguf.GGMLQuantizationType[kind])
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def write_bitsandbytes(kind: str) -> None:
    """Write Flux's matrices as bitsandbytes stores them."""
    from bitsandbytes.functional import quantize_4bit

    weights = {}
    for key, tensor in load_file(MODELS / "e2e-flux.safetensors").items():
        weights[key] = tensor.float()
        if tensor.dim() == 2:
            weights[key], state = quantize_4bit(tensor.float(), quant_type=kind, blocksize=64, compress_statistics=False)
            weights |= {f"{key}.{part}": value for part, value in state.as_dict(packed=True).items()}
    save_file(weights, MODELS / f"e2e-flux-{kind}.safetensors")


for each in (("flux", "Q8_0"), ("flux", "Q4_0"), ("flux", "Q4_K"), ("chroma", "Q8_0")):
    write_gguf(*each)
if importlib.util.find_spec("bitsandbytes"):
    for bits in ("nf4", "fp4"):
        write_bitsandbytes(bits)
