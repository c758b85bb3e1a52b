"""Where each element of a checkpoint lies in an engine's own parameters.

A part says that one strided range of a checkpoint tensor is one strided range of a parameter's storage: slices, fusions, transposes,
expert stacks, tensor- and expert-parallel shares are all such. Only where an engine repacks a parameter after loading is a permutation
of its lanes laid over it. What is computed rather than moved is *opaque*: it is named, and written by the engine itself.

Places are lanes of the whole storage, so parameters that share one, and views that are made later, need no words of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from weightsync.engine.inplace.axes import Strided
from weightsync.engine.inplace.permutation import Permutation


class Described(NamedTuple):
    """Type (as layouts name it) and shape, in elements, of a tensor of the checkpoint."""

    dtype: str
    shape: tuple[int, ...]


class Home(NamedTuple):
    """The storage of a parameter: type (as layouts name it) and number of lanes; `names` are all parameters in it."""

    dtype: str
    lanes: int
    names: tuple[str, ...]


class Part(NamedTuple):
    """Lanes of a tensor of the checkpoint that lie in the storage of a parameter."""

    tensor: str
    parameter: str
    where: Strided


@dataclass(frozen=True)
class LayoutMap:
    """Made by `record`. Parameters are called by the first of the names that share a storage.

    `opaque`: parameters that a write cannot reach, and why. `outside`: parameters with lanes that are not from the checkpoint (buffers,
    padding of a vocabulary), and how many. `unused`: tensors of the checkpoint that no parameter holds (a tied head that is stored too).
    """

    tensors: Mapping[str, Described]
    homes: Mapping[str, Home]
    parts: tuple[Part, ...]
    opaque: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    computed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tensors that went into an opaque parameter
    permutations: Mapping[str, Permutation] = field(default_factory=dict)

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Part, ...]]:
        """The parts of each tensor."""
        found: dict[str, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part.tensor, []).append(part)
        return {name: tuple(parts) for name, parts in found.items()}

    @cached_property
    def opaque_tensors(self) -> Mapping[str, str]:
        """Tensors of the checkpoint that an opaque parameter needs, and why."""
        found = {name: why for parameter, why in self.opaque.items() for name in self.computed.get(parameter, ())}
        return found | {part.tensor: self.opaque[part.parameter] for part in self.parts if part.parameter in self.opaque}

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """Tensors that went nowhere."""
        return tuple(name for name in self.tensors if name not in self.by_tensor and name not in self.opaque_tensors)

    def repacked(self, permutations: Mapping[str, Permutation]) -> "LayoutMap":
        """The same, where the lanes of some parameters' storages were permuted after loading."""
        return replace(self, permutations={**self.permutations, **{self.home_of(name): one for name, one in permutations.items()}})

    def without(self, why: Mapping[str, str]) -> "LayoutMap":
        """The same, with more opaque parameters."""
        return replace(self, opaque={**self.opaque, **{self.home_of(name): reason for name, reason in why.items()}})

    def home_of(self, parameter: str) -> str:
        """The name under which a parameter's storage goes; the name itself where it is not known."""
        return self._home_of.get(parameter, parameter)

    @cached_property
    def _home_of(self) -> Mapping[str, str]:
        return {name: home for home, found in self.homes.items() for name in found.names}

    def report(self) -> dict[str, object]:
        """What it covers, for logs and people."""
        return {
            "tensors": len(self.tensors),
            "parts": len(self.parts),
            "parameters": len(self.homes),
            "repacked": sorted(self.permutations),
            "opaque": dict(self.opaque),
            "outside": dict(self.outside),
            "unused": list(self.unused),
        }
