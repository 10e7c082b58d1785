"""A tiny image projector with random weights and LLaVA's layout, for use with SmolLM2.

The resulting embeddings are meaningless, but different images give different embeddings.
"""

import random
from array import array
from pathlib import Path

from tests.backends.tiny_gguf import lay_out

IMAGE_TOKENS = 16  # 4 x 4 patches of 8 pixels
_WIDTH, _INNER = 32, 64
_SMOLLM2_WIDTH = 576
_KEYS = {
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    "clip.projector_type": "mlp",
    "clip.use_gelu": True,
    "clip.vision.image_size": 32,
    "clip.vision.patch_size": 8,
    "clip.vision.embedding_length": _WIDTH,
    "clip.vision.feed_forward_length": _INNER,
    "clip.vision.block_count": 1,
    "clip.vision.projection_dim": _SMOLLM2_WIDTH,
    "clip.vision.attention.head_count": 2,
    "clip.vision.attention.layer_norm_epsilon": 1e-6,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
}


def write(path: Path, width: int = _SMOLLM2_WIDTH) -> Path:
    """Write a projector for a model with embeddings of the given width."""
    dice = random.Random(1)

    def weights(size: int) -> bytes:
        return array("f", (dice.gauss(0, 0.1) for _ in range(size // 4))).tobytes()

    return lay_out(path, _KEYS, _tensors(width), weights)


def _tensors(width: int) -> dict[str, tuple[int, ...]]:
    block = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (_WIDTH, _WIDTH)),
        **dict.fromkeys(("ln1", "ln2"), (_WIDTH,)),
        "ffn_up": (_WIDTH, _INNER),
        "ffn_down": (_INNER, _WIDTH),
    }
    return {
        "v.patch_embd.weight": (8, 8, 3, _WIDTH),
        "v.patch_embd.bias": (_WIDTH,),
        "v.position_embd.weight": (_WIDTH, IMAGE_TOKENS),
        **{f"v.blk.0.{name}.weight": shape for name, shape in block.items()},
        **{f"v.blk.0.{name}.bias": shape[-1:] for name, shape in block.items()},
        "mm.0.weight": (_WIDTH, width),
        "mm.0.bias": (width,),
        "mm.2.weight": (width, width),
        "mm.2.bias": (width,),
    }
