"""Small models whose loaders do what those of real engines do: each is (parameters, checkpoint, load)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

BF16 = torch.bfloat16
Stream = Iterator[tuple[str, Tensor]]


@dataclass
class Model:
    """`load` fills `parameters` from (name, tensor) pairs; `opaque` are the parameters that it computes."""

    parameters: dict[str, Tensor]
    checkpoint: dict[str, Tensor]
    load: Callable[[Stream], object]
    opaque: set[str] = field(default_factory=set)
    outside: dict[str, int] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)
    partial: set[str] = field(default_factory=set)  # tensors of which only a part is here

    def tensors(self) -> Stream:
        yield from self.checkpoint.items()


def values(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def parameter(*shape: int, dtype: torch.dtype = BF16) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


def fused() -> Model:
    """Queries, keys and values, and gate and up, are rows of one parameter each."""
    parameters = {"qkv": parameter(64, 16), "gate_up": parameter(80, 16)}
    rows = {"q": ("qkv", 0, 32), "k": ("qkv", 32, 16), "v": ("qkv", 48, 16), "gate": ("gate_up", 0, 40), "up": ("gate_up", 40, 40)}
    checkpoint = {name: values(count, 16, seed=first) for name, (_, first, count) in rows.items()}

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            home, first, count = rows[name]
            parameters[home].data.narrow(0, first, count).copy_(tensor)

    return Model(parameters, checkpoint, load)


def tensor_parallel(rank: int = 1, ranks: int = 2) -> Model:
    """Columns of one, rows of another, a norm that every rank holds, a vocabulary cut and padded."""
    parameters = {"down": parameter(16, 24 // ranks), "up": parameter(24 // ranks, 16), "norm": parameter(16), "embed": parameter(16, 16)}
    checkpoint = {"down": values(16, 24), "up": values(24, 16), "norm": values(16), "embed": values(27, 16)}
    vocabulary = checkpoint["embed"].shape[0]
    first, last = rank * 16, min(vocabulary, (rank + 1) * 16)

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            part = tensor
            if name == "down":
                part = tensor.narrow(1, rank * 24 // ranks, 24 // ranks)
            elif name == "up":
                part = tensor.narrow(0, rank * 24 // ranks, 24 // ranks)
            if name == "embed":
                parameters[name].data[: last - first].copy_(tensor[first:last])
                parameters[name].data[last - first :].fill_(0)
            else:
                parameters[name].data.copy_(part)

    outside = {"embed": (16 - (last - first)) * 16} if last - first < 16 else {}
    return Model(parameters, checkpoint, load, outside=outside, partial={"down", "up", "embed"})


def experts(first: int = 0, count: int = 4) -> Model:
    """Stacked: gate and up side by side, down transposed; this rank holds experts `first` to `first + count`."""
    parameters = {"w13": parameter(count, 24, 16), "w2": parameter(count, 12, 16)}
    checkpoint = {
        f"experts.{number}.{name}": values(*shape, seed=number)
        for number in range(8)
        for name, shape in (("gate", (12, 16)), ("up", (12, 16)), ("down", (16, 12)))
    }

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            _, number, which = name.split(".")
            at = int(number) - first
            if not 0 <= at < count:
                continue
            if which == "down":
                parameters["w2"].data[at].copy_(tensor.t())
            else:
                parameters["w13"].data[at].narrow(0, 12 * (which == "up"), 12).copy_(tensor)

    unused = {name for name in checkpoint if not first <= int(name.split(".")[1]) < first + count}
    return Model(parameters, checkpoint, load, unused=unused)


def through_others() -> Model:
    """By way of a stack, a concatenation, a flip, a buffer, a contiguous transpose and a conversion."""
    parameters = {
        "stacked": parameter(3, 8, 4),
        "joined": parameter(20, 4),
        "flipped": parameter(8, 4),
        "buffered": parameter(10, 4),
        "turned": parameter(4, 8),
        "rows": parameter(5, 4),
    }
    names = [*(f"stack.{number}" for number in range(3)), "left", "right", "flip", "buffer", "turn", "rows"]
    checkpoint = {name: values(12 if name == "right" else 8, 4, seed=number) for number, name in enumerate(names)}

    def load(stream: Stream) -> None:
        found = dict(stream)
        parameters["stacked"].data.copy_(torch.stack([found[f"stack.{number}"] for number in range(3)]))
        parameters["joined"].data.copy_(torch.cat([found["left"], found["right"]]).clone())
        parameters["flipped"].data.copy_(found["flip"].flip(0).float())
        buffer = torch.zeros(10, 4, dtype=BF16)
        buffer[1:9].copy_(found["buffer"])
        parameters["buffered"].data.copy_(buffer)
        parameters["turned"].data.copy_(found["turn"].t().contiguous())
        parameters["rows"].data.copy_(found["rows"][torch.tensor([0, 2, 3, 5, 7])])

    return Model(parameters, checkpoint, load, outside={"buffered": 8}, partial={"rows"})


def tied() -> Model:
    """The head is the embedding; another copy of it lies elsewhere; the stored head is not loaded."""
    embed = parameter(12, 8)
    parameters = {"embed": embed, "head": embed, "copy": parameter(12, 8), "buffer": parameter(5, dtype=torch.float32)}
    checkpoint = {"embed": values(12, 8), "head": values(12, 8)}

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            if name == "embed":
                embed.data.copy_(tensor)
                parameters["copy"].data.copy_(tensor)

    return Model(parameters, checkpoint, load, outside={"buffer": 5}, unused={"head"})


def widened() -> Model:
    """Narrow checkpoints in wide parameters, and one that would be narrowed."""
    pairs = {
        "a": (BF16, torch.float32),
        "b": (torch.float16, torch.float32),
        "c": (torch.float32, torch.float64),
        "d": (BF16, torch.float64),
    }
    pairs["e"] = (torch.float32, BF16)
    parameters = {name: parameter(6, 8, dtype=wide) for name, (_, wide) in pairs.items()}
    checkpoint = {name: values(6, 8, dtype=narrow) for name, (narrow, _) in pairs.items()}

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            parameters[name].data.copy_(tensor)

    return Model(parameters, checkpoint, load, opaque={"e"})


def computed() -> Model:
    """A norm of which 1 is taken, a quantised weight, one that something is added to later, and a plain one."""
    parameters = {name: parameter(8, 8) for name in ("norm", "added", "plain", "out", "listed")} | {
        "quantised": parameter(8, 8, dtype=torch.int8)
    }
    checkpoint = {name: values(8, 8) for name in parameters}

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            if name == "norm":
                parameters[name].data.copy_(tensor + 1)
            elif name == "quantised":
                parameters[name].data.copy_((tensor * 16).round().to(torch.int8))
            elif name == "out":
                torch.add(tensor, 1, out=parameters[name].data)
            elif name == "listed":
                torch._foreach_copy_([parameters[name].data], [tensor])
            else:
                parameters[name].data.copy_(tensor)
        parameters["added"].data.add_(1)

    return Model(parameters, checkpoint, load, opaque={"norm", "quantised", "added", "out"})


def assigned() -> Model:
    """Parameters that are given the loaded tensor itself, or a converted one."""
    parameters = {"same": parameter(8, 4), "converted": parameter(8, 4, dtype=torch.float32)}
    checkpoint = {name: values(8, 4) for name in parameters}

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            parameters[name].data = tensor.float() if name == "converted" else tensor

    return Model(parameters, checkpoint, load)


def packed_types() -> Model:
    """Whole numbers, complex ones, booleans, bytes, a scalar, no elements."""
    kinds = {"i64": torch.int64, "c64": torch.complex64, "bool": torch.bool, "u8": torch.uint8, "f8": torch.float8_e4m3fn}
    checkpoint = {name: (values(6, 4, dtype=torch.float32) * 3).to(dtype) for name, dtype in kinds.items()}
    checkpoint |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    parameters = {name: torch.zeros_like(tensor) for name, tensor in checkpoint.items()}

    def load(stream: Stream) -> None:
        for name, tensor in stream:
            parameters[name].copy_(tensor)

    return Model(parameters, checkpoint, load)


MODELS = {
    maker.__name__: maker for maker in (fused, tensor_parallel, experts, through_others, tied, widened, computed, assigned, packed_types)
}
