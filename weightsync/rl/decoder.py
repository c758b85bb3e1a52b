"""A small decoder of the shape and with the tensor names of Qwen3 or Qwen3-MoE, in plain torch, and sampling from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from weightsync.errors import Invalid, Unsupported
from weightsync.rl.mlp import Experts, Mlp, Routing

INITIAL_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder; the default has 4.4 million parameters. `experts` 0: dense; else each token takes `chosen_experts` of them."""

    vocabulary: int = 32
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 64
    mlp_width: int = 704
    context: int = 64
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    experts: int = 0
    chosen_experts: int = 2

    def config(self) -> dict[str, Any]:
        """What `config.json` says of it, so that transformers loads the checkpoint."""
        mixture = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": self.mlp_width,
            "num_experts": self.experts,
            "num_experts_per_tok": self.chosen_experts,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "dtype": "bfloat16",
            "head_dim": self.head_width,
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.mlp_width,
            "max_position_embeddings": self.context,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": self.rope_base,
            "tie_word_embeddings": False,
            "vocab_size": self.vocabulary,
            **(mixture if self.experts else {}),
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """That of a `config.json`. Raises `Unsupported` for other models, `Invalid` for one that lacks a size."""
        kind = config.get("model_type")
        if kind not in ("qwen3", "qwen3_moe") or config.get("tie_word_embeddings"):
            raise Unsupported(f"a {kind!r} model does not run here", remedy="take an untied Qwen3 or Qwen3-MoE, or an engine that runs it")
        names = {
            "vocabulary": "vocab_size",
            "width": "hidden_size",
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "kv_heads": "num_key_value_heads",
            "head_width": "head_dim",
            "mlp_width": "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size",
            "context": "max_position_embeddings",
            "rope_base": "rope_theta",
            "norm_epsilon": "rms_norm_eps",
            **({"experts": "num_experts", "chosen_experts": "num_experts_per_tok"} if kind == "qwen3_moe" else {}),
        }
        missing = sorted(name for name in names.values() if name not in config)
        if missing:
            raise Invalid(f"config.json does not say {', '.join(missing)}")
        return cls(**{own: config[name] for own, name in names.items()})


class Cache(NamedTuple):
    """Keys and values of one layer, each (batch, kv_heads, context, head_width), filled up to the current position."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Place:
    """Where the tokens of a pass stand: their rotations, and how they meet what the caches hold."""

    cosine: Tensor
    sine: Tensor
    start: int | Tensor
    end: int
    mask: Tensor | None = None

    def write(self, held: Tensor, new: Tensor) -> Tensor:
        """Puts `new` (batch, kv_heads, length, head_width) into the first rows of `held`, and gives all that the tokens may look at."""
        rows = held[: len(new)]
        if isinstance(self.start, int):
            rows[:, :, self.start : self.end] = new
        else:
            rows[torch.arange(len(new)), :, self.start] = new[:, :, 0]
        return rows[:, :, : self.end]


class Norm(nn.Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape (..., width)."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Attention(nn.Module):
    """Causal grouped-query attention with normed queries and keys and rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)
        self.q_norm = Norm(shape.head_width, shape.norm_epsilon)
        self.k_norm = Norm(shape.head_width, shape.norm_epsilon)

    def forward(self, x: Tensor, place: Place, cache: Cache | None) -> Tensor:
        """(batch, length, width) -> the same; `cache` is written at `place`."""
        batch, length, _ = x.shape
        cosine, sine = place.cosine, place.sine
        split = (batch, length, -1, self.shape.head_width)
        queries = _rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2), cosine, sine)
        keys = _rotate(self.k_norm(self.k_proj(x).view(split)).transpose(1, 2), cosine, sine)
        values = self.v_proj(x).view(split).transpose(1, 2)
        if cache:
            keys, values = place.write(cache.keys, keys), place.write(cache.values, values)
        causal = length > 1
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=place.mask, is_causal=causal, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.width, shape.norm_epsilon)
        sizes = (shape.width, shape.mlp_width)
        self.mlp = Experts(*sizes, shape.experts, shape.chosen_experts) if shape.experts else Mlp(*sizes)

    def forward(self, x: Tensor, place: Place, cache: Cache | None, routing: Routing) -> Tensor:
        """(batch, length, width) -> the same."""
        x = x + self.self_attn(self.input_layernorm(x), place, cache)
        normed = self.post_attention_layernorm(x)
        return x + (self.mlp(normed, routing) if isinstance(self.mlp, Experts) else self.mlp(normed))


class Body(nn.Module):
    """What checkpoints call `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.norm_epsilon)


class Decoder(nn.Module):
    """Token ids (batch, length) -> logits (batch, length, vocabulary)."""

    def __init__(self, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        inverse = shape.rope_base ** -(torch.arange(0, shape.head_width, 2) / shape.head_width)
        self.register_buffer("angles", torch.outer(torch.arange(shape.context), inverse), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INITIAL_STD, generator=generator)

    def forward(
        self, tokens: Tensor, caches: list[Cache] | None = None, position: int | Tensor = 0, routing: Routing | None = None
    ) -> Tensor:
        """With `caches`, `tokens` follow the `position` tokens that are in there; the caches may have more rows than `tokens`.

        `position` int64 (batch,): `tokens` is one for each row, each at its own place. `routing` replays and keeps choices of experts.
        """
        x = self.model.embed_tokens(tokens)
        place, routing = self._place(tokens, position, x.dtype), routing or Routing()
        for index, layer in enumerate(self.model.layers):
            x = layer(x, place, caches[index] if caches else None, routing)
        return self.lm_head(self.model.norm(x))

    def _place(self, tokens: Tensor, position: int | Tensor, dtype: torch.dtype) -> Place:
        if isinstance(position, int):
            end = position + tokens.shape[1]
            angles, mask = self.angles[position:end].float(), None
        else:
            end = int(position.max()) + 1
            angles = self.angles[position].float()[:, None, None]
            mask = (torch.arange(end) <= position[:, None])[:, None, None]
        return Place(angles.cos().to(dtype), angles.sin().to(dtype), position, end, mask)

    def caches(self, batch: int, length: int) -> list[Cache]:
        """Empty caches for `batch` sequences of up to `length` tokens."""
        size = (batch, self.shape.kv_heads, length, self.shape.head_width)
        dtype = self.lm_head.weight.dtype
        return [Cache(torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)) for _ in self.model.layers]


@torch.no_grad()
def sample(decoder: Decoder, prompts: Tensor, length: int, generator: torch.Generator | None) -> Tensor:
    """`length` tokens after each of `prompts` (batch, prompt length), drawn at temperature 1; without `generator` the likeliest."""
    caches = decoder.caches(len(prompts), prompts.shape[1] + length)
    position, tokens, drawn = 0, prompts, []
    for _ in range(length):
        logits = decoder(tokens, caches, position)[:, -1].float()
        position += tokens.shape[1]
        likeliest = generator is None
        tokens = logits.argmax(-1, keepdim=True) if likeliest else torch.multinomial(logits.softmax(-1), 1, generator=generator)
        drawn.append(tokens)
    return torch.cat(drawn, 1)
