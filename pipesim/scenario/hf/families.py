"""What a ``model_type`` of Hugging Face implies without saying so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """Conventions of one kind of decoder.

    Parameters
    ----------
    gated_mlp, biases, tied, learned_positions : bool
        As a scenario's ``model:`` states them; `tied` where the configuration does not say.
    position_padding : int
        Rows of the position embedding beyond the positions.
    default_ffn_factor : int, optional
        Width of the MLP over the hidden size where it is not stated.
    some_windows : bool
        Whether a sliding window holds for some layers only, so that sequences may be longer.
    defaults : Mapping
        Sizes that configurations leave to the library's defaults.
    """

    gated_mlp: bool
    biases: bool
    tied: bool
    learned_positions: bool = False
    position_padding: int = 0
    default_ffn_factor: int | None = None
    some_windows: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


LLAMA = DecoderFamily(gated_mlp=True, biases=False, tied=False)
_TIED = replace(LLAMA, tied=True)
GPT2 = DecoderFamily(gated_mlp=False, biases=True, tied=True, learned_positions=True, default_ffn_factor=4)
_PLAIN = DecoderFamily(gated_mlp=False, biases=False, tied=False)
_GEMMA3 = replace(
    _TIED,
    some_windows=True,
    defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
)
_WINDOWED = replace(LLAMA, some_windows=True)

_OF_LLAMA = """
llama mistral mixtral ministral mistral3 qwen2 qwen3 qwen2_moe qwen3_moe qwen2_vl qwen2_5_vl qwen3_vl
qwen3_vl_moe qwen2_vl_text qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text qwen deepseek deepseek_v2
deepseek_v3 kimi_k2 phi3 phimoe glm glm4 glm4_moe minimax_m2 internlm internlm2 internlm3 baichuan olmo
olmo2 olmoe seed_oss hunyuan_v1_dense exaone stablelm granite_llama aquila yi mimo dots1 llava llava_next
pixtral internvl_chat
"""
FAMILIES: dict[str, DecoderFamily] = {
    "gpt2": GPT2,
    "gpt_bigcode": GPT2,
    "opt": replace(GPT2, position_padding=2, default_ffn_factor=None),
    "bloom": replace(GPT2, learned_positions=False),
    "gpt_neox": DecoderFamily(gated_mlp=False, biases=True, tied=False),
    "gptj": DecoderFamily(gated_mlp=False, biases=True, tied=False, default_ffn_factor=4),
    "phi": DecoderFamily(gated_mlp=False, biases=True, tied=False),
    "starcoder2": DecoderFamily(gated_mlp=False, biases=True, tied=True),
    "falcon": DecoderFamily(gated_mlp=False, biases=False, tied=True, default_ffn_factor=4),
    "nemotron": _PLAIN,
    "arcee": _PLAIN,
    "apertus": _PLAIN,
    **dict.fromkeys(_OF_LLAMA.split(), LLAMA),
    **dict.fromkeys(("cohere", "granite", "granitemoe", "smollm3", "ernie4_5", "ernie4_5_moe"), _TIED),
    "gemma": replace(_TIED, defaults={"head_dim": 256}),
    "gemma2": replace(_TIED, some_windows=True, defaults={"head_dim": 256}),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "cohere2": replace(_TIED, some_windows=True),
    "gpt_oss": _WINDOWED,
    "llama4": _WINDOWED,
    "llama4_text": _WINDOWED,
    "olmo3": _WINDOWED,
    "exaone4": _WINDOWED,
}
REFUSED = {
    "qwen3_next": "linear attention (gated delta rule) in three of four layers",
    "qwen3_5": "linear attention (gated delta rule) in three of four layers",
    "qwen3_5_moe": "linear attention (gated delta rule) in three of four layers",
    "minimax": "linear (lightning) attention in seven of eight layers",
    "minimax_text_01": "linear (lightning) attention in seven of eight layers",
    "kimi_linear": "linear attention in three of four layers",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "falcon_mamba": "state-space layers",
    "falcon_h1": "state-space layers",
    "jamba": "state-space layers",
    "bamba": "state-space layers",
    "zamba": "state-space layers",
    "zamba2": "state-space layers",
    "nemotron_h": "state-space layers",
    "granitemoehybrid": "state-space layers",
    "lfm2": "convolutions in place of attention",
    "rwkv": "recurrent layers",
    "recurrent_gemma": "recurrent layers",
    "mllama": "cross-attention to a vision tower",
    "gemma3n": "layers that share keys and have embeddings of their own",
    "deepseek_v32": "sparse attention with an index",
    "nemotron-nas": "layers of different shapes",
    "deci": "layers of different shapes",
    "openelm": "layers of different shapes",
    "phi3small": "block-sparse attention",
    "t5": "an encoder",
    "bart": "an encoder",
    "whisper": "an encoder",
}
"""Kinds that are known, and what of them is not modelled."""
