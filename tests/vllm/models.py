"""Tiny random Qwen3 directories, written without transformers' model classes: names and shapes as these save them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCABULARY, HIDDEN, LAYERS, HEADS, KV, DIM, INNER, EXPERTS, EXPERT_INNER = 128, 128, 2, 4, 2, 32, 256, 4, 64


def config(*, moe: bool, tied: bool, layers: int = LAYERS) -> dict[str, Any]:
    kind = "Qwen3Moe" if moe else "Qwen3"
    found: dict[str, Any] = {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": "qwen3_moe" if moe else "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIM,
        "intermediate_size": INNER,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    if moe:
        found |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": EXPERT_INNER,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return found


def tensors(*, moe: bool, tied: bool, layers: int = LAYERS, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.05).bfloat16()

    found = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN), "model.norm.weight": 1 + normal(HIDDEN)}
    if not tied:
        found["lm_head.weight"] = normal(VOCABULARY, HIDDEN)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name, shape in (
            ("q", (HEADS * DIM, HIDDEN)),
            ("k", (KV * DIM, HIDDEN)),
            ("v", (KV * DIM, HIDDEN)),
            ("o", (HIDDEN, HEADS * DIM)),
        ):
            found[f"{at}self_attn.{name}_proj.weight"] = normal(*shape)
        for name, size in (
            ("self_attn.q_norm", DIM),
            ("self_attn.k_norm", DIM),
            ("input_layernorm", HIDDEN),
            ("post_attention_layernorm", HIDDEN),
        ):
            found[f"{at}{name}.weight"] = 1 + normal(size)
        if moe:
            found[f"{at}mlp.gate.weight"] = normal(EXPERTS, HIDDEN)
        for block, inner in [(f"mlp.experts.{one}", EXPERT_INNER) for one in range(EXPERTS)] if moe else [("mlp", INNER)]:
            found[f"{at}{block}.gate_proj.weight"] = normal(inner, HIDDEN)
            found[f"{at}{block}.up_proj.weight"] = normal(inner, HIDDEN)
            found[f"{at}{block}.down_proj.weight"] = normal(HIDDEN, inner)
    return found


def write(directory: Path, weights: dict[str, torch.Tensor], settings: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: one.contiguous() for name, one in weights.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(settings))
    return directory
