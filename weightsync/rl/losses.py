"""What to descend: one number per drawn token, from its log-probabilities and its advantage. Pure functions.

Every loss takes float32 tensors of one shape: `new`, the log-probabilities under the policy that learns (with gradients), `old`, those
under the policy that drew the tokens, as recorded by the engine (never recomputed: a recomputed `old` equals `new` and switches every
correction off), `advantages`, and `near`, those under the policy as it was when this step began (only `decoupled_ppo` asks for it).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from weightsync.errors import Invalid

LOG_RATIO_LIMIT = 20.0  # e^20: beyond it float32 sums lose everything else

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    return (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def none(new: Tensor, old: Tensor, advantages: Tensor, near: Tensor) -> Tensor:  # noqa: ARG001
    """Plain policy gradient, as if the tokens were the learning policy's own (REINFORCE, Williams 1992): for comparison."""
    return -advantages * new


def tis(new: Tensor, old: Tensor, advantages: Tensor, near: Tensor, *, most: float = 2.0) -> Tensor:  # noqa: ARG001
    """Truncated importance sampling: the gradient weighted by the ratio of probabilities, at most `most`.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    weight = _ratio(new.detach(), old).clamp(max=most)
    return -weight * advantages * new


def icepop(new: Tensor, old: Tensor, advantages: Tensor, near: Tensor, *, low: float = 0.5, high: float = 2.0) -> Tensor:  # noqa: ARG001
    """Importance sampling within a band: tokens whose ratio lies outside [`low`, `high`] count nothing, whatever their advantage.

    Source: "Every Step Evolves", arXiv 2510.18855, section on IcePop.
    """
    ratio = _ratio(new.detach(), old)
    inside = (ratio >= low) & (ratio <= high)
    return -torch.where(inside, ratio, 0.0) * advantages * new


def ppo(new: Tensor, old: Tensor, advantages: Tensor, near: Tensor, *, clip: float = 0.2) -> Tensor:  # noqa: ARG001
    """PPO's clipped surrogate, the ratio taken against the behaviour policy. Source: Schulman et al. 2017, arXiv 1707.06347."""
    ratio = _ratio(new, old)
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def decoupled_ppo(new: Tensor, old: Tensor, advantages: Tensor, near: Tensor, *, clip: float = 0.2, most: float = 5.0) -> Tensor:
    """PPO around a recent policy, weighted from the behaviour policy to it; weights above `most` are truncated.

    Source: Hilton et al. 2021, arXiv 2110.00641; for language models Fu et al. 2025 (AReaL), arXiv 2505.24298, equation 5.
    """
    weight = _ratio(near, old).clamp(max=most)
    return weight * ppo(new, near, advantages, near, clip=clip)


def dppo(new: Tensor, old: Tensor, advantages: Tensor, near: Tensor, *, reach: float = 0.2, pull: float = 1e-3) -> Tensor:  # noqa: ARG001
    """A trust region on the change of probability, not on the ratio: a token that has moved by `reach` moves no further that way.

    Rare tokens may so grow manyfold, and likely ones are stopped before they turn the policy over. `pull` times the squared log-ratio
    draws all tokens back. Source: Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning" (DPPO, binary total
    variation), arXiv 2602.04879.
    """
    moved = new.detach().exp() - old.exp()
    beyond = torch.where(advantages > 0, moved > reach, moved < -reach)
    surrogate = torch.where(beyond, 0.0, _ratio(new, old) * advantages)
    return -surrogate + pull * (new - old).square()


LOSSES: Mapping[str, Loss] = {"dppo": dppo, "ppo": ppo, "tis": tis, "icepop": icepop, "decoupled_ppo": decoupled_ppo, "none": none}


def loss_named(name: str) -> Loss:
    """The loss of that name. Raises `Invalid` with those there are."""
    if name not in LOSSES:
        raise Invalid(f"there is no loss {name!r}", remedy=f"take one of {', '.join(LOSSES)}")
    return LOSSES[name]
