"""The feed-forward part of a decoder layer: SwiGLU, or a router and several of them, with the tensor names of Qwen3-MoE."""

import torch
from torch import Tensor, nn
from torch.nn import functional

FREE = 255  # in a row of experts to replay: nothing was recorded, the router chooses


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Routing:
    """What the routers of one forward pass choose, layer after layer, kept; and what they shall choose.

    `replay`: uint8 (batch, length, layers, k), the experts that another pass chose (`FREE`: choose). The weights of the experts are
    always this pass's own, so gradients reach the router. Source: "Rollout Routing Replay", arXiv 2510.11370.
    """

    def __init__(self, replay: Tensor | None = None) -> None:
        self._replay = replay
        self._chosen: list[Tensor] = []

    def choose(self, probabilities: Tensor, k: int) -> Tensor:
        """(batch, length, experts) -> the next layer's experts, int64 (batch, length, k)."""
        chosen = probabilities.topk(k, -1).indices
        if self._replay is not None:
            said = self._replay[:, :, len(self._chosen)].long()
            chosen = torch.where(said == FREE, chosen, said)
        self._chosen.append(chosen)
        return chosen

    @property
    def chosen(self) -> Tensor:
        """uint8 (batch, length, layers, k)."""
        return torch.stack(self._chosen, 2).to(torch.uint8)


class Experts(nn.Module):
    """A router over `count` SwiGLUs of which each token takes `k`, weights normed to one.

    Every expert sees every token, and those not chosen count zero: right for models this small, where it also keeps shapes fixed.
    """

    def __init__(self, width: int, inner: int, count: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Mlp(width, inner) for _ in range(count))

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """(batch, length, width) -> the same."""
        probabilities = self.gate(x).float().softmax(-1)
        chosen = routing.choose(probabilities, self.k)
        weights = probabilities.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        shares = torch.zeros_like(probabilities).scatter(-1, chosen, weights).to(x.dtype)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mixed = mixed + expert(x) * shares[..., number, None]
        return mixed
