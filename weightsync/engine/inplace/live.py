"""The parameters of a running engine, through its layout map."""

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from weightsync.engine.api import Change, TensorChange
from weightsync.engine.inplace.axes import Places
from weightsync.engine.inplace.lanes import Lanes, lanes_of
from weightsync.engine.inplace.layout_map import LayoutMap, Part
from weightsync.engine.inplace.plan import Plan, Scattered, Whole
from weightsync.engine.inplace.region import Region, add_up
from weightsync.engine.inplace.site import Site
from weightsync.engine.inplace.widening import widening
from weightsync.errors import Corrupt, Invalid
from weightsync.format.layout import Layout

_ANOTHER = "start the engine with that model"


class LiveWeights:
    """`parameters` (by name) as they are after loading and whatever the engine did to them then; they must outlive it.

    `opaque` names the tensors of the checkpoint that a write does not, or not wholly, reach, and why: opaque parameters of the map, and
    those whose storage is another one by now.
    """

    def __init__(self, parameters: Mapping[str, Any], layout_map: LayoutMap) -> None:
        self._keep = dict(parameters)
        self.map = self._without_repacked(layout_map)
        self.opaque: Mapping[str, str] = self.map.opaque_tensors
        lanes: dict[str, Lanes] = {}
        self._sites: dict[str, list[Site]] = {}
        for part in self.map.parts:
            if part.parameter not in self.map.opaque:
                if part.parameter not in lanes:
                    lanes[part.parameter] = lanes_of(self._parameter(part.parameter))
                self._sites.setdefault(part.tensor, []).append(self._site(part, lanes[part.parameter]))

    def stage(self, change: Change) -> Plan:
        """Works out what is to be written, and holds it beside the parameters, which are only read.

        Raises `Invalid` for a layout that is not that of the checkpoint, `Corrupt` where lanes are not what the change says they were.
        """
        names = self._names(change.layout)
        if change.base is None and len(change.tensors) != len(change.layout.tensors):
            raise Invalid("a change without a base is not whole", remedy="make it anew")
        entries: list[Scattered | Whole] = []
        opaque: list[str] = []
        for one in change.tensors:
            tensor = change.layout.tensors[one.tensor]
            for name in names[one.tensor]:
                entries.extend(_entries(tensor.name, one, self._sites.get(name, [])))
            if one.lanes and any(name in self.opaque for name in names[one.tensor]):
                opaque.append(tensor.name)
        return Plan(entries, tuple(opaque))

    def regions(self, layout: Layout | None = None) -> Iterator[Region]:
        """The sums of all parts, one after the other, as this process holds them; tensors are called as `layout` calls them."""
        for name, sites in self._sites.items():
            if name not in self.opaque:
                yield from (site.region(self._stored(name, layout)) for site in sites)

    def sums(self, layout: Layout | None = None) -> dict[str, int]:
        """The sums of the tensors that lie here whole, mod 2^64; opaque and unused ones are missing.

        For an engine of many ranks collect `regions` of all and `add_up`. Raises `Corrupt` where two copies of a tensor differ.
        """
        tensors = {self._stored(name, layout): described for name, described in self.map.tensors.items()}
        return add_up(self.regions(layout), tensors)

    def wrong(self, expected: Mapping[str, int], layout: Layout | None = None) -> list[str]:
        """The tensors that lie here whole and are not what `expected` (sums by name) says."""
        return sorted(name for name, total in self.sums(layout).items() if expected.get(name, total) != total)

    def poke(self, name: str, positions: NDArray[Any], values: NDArray[Any]) -> int:
        """Writes some lanes of what the loader calls `name`, at once and unchecked; gives how many were reached. For tests and checks."""
        reached = 0
        for site in self._sites.get(name, []):
            which, places = site.select(positions)
            site.lanes.write(site.lanes.hold_places(places), site.lanes.hold(site.bits(values[which])))
            reached += len(places)
        return reached

    def _names(self, layout: Layout) -> list[list[str]]:
        """By tensor of the layout, what the loader calls it. Raises `Invalid` where the two do not fit."""
        found: list[list[str]] = [[] for _ in layout.tensors]
        for name, described in self.map.tensors.items():
            number = layout.index.get(name)
            if number is None:
                raise Invalid(f"tensor {name!r} of the engine is missing in the version", remedy=_ANOTHER)
            tensor = layout.tensors[number]
            if (tensor.dtype.name, tensor.shape) != described:
                what = f"{tensor.dtype.name} {list(tensor.shape)}"
                raise Invalid(f"tensor {name!r} is {what}, the engine loaded {described.dtype} {list(described.shape)}", remedy=_ANOTHER)
            found[number].append(name)
        for tensor, names in zip(layout.tensors, found, strict=True):
            if not names:
                raise Invalid(f"tensor {tensor.name!r} is unknown to the engine", remedy=_ANOTHER)
        return found

    def _stored(self, name: str, layout: Layout | None) -> str:
        if layout is None or name not in layout.index:
            return name
        return layout.tensors[layout.index[name]].name

    def _without_repacked(self, found: LayoutMap) -> LayoutMap:
        why = {}
        for home, (_, lanes, _) in found.homes.items():
            parameter = next((self._keep[name] for name in found.homes[home].names if name in self._keep), None)
            permutation = found.permutations.get(home)
            if parameter is None:
                why[home] = "the engine has no such parameter any more"
            elif lanes_of(parameter).count != lanes or (permutation and permutation.lanes != lanes):
                why[home] = "the engine keeps it in another form after loading"
        return found.without({name: reason for name, reason in why.items() if name not in found.opaque})

    def _parameter(self, home: str) -> Any:
        return next(self._keep[name] for name in self.map.homes[home].names if name in self._keep)

    def _site(self, part: Part, lanes: Lanes) -> Site:
        narrow, wide = self.map.tensors[part.tensor].dtype, self.map.homes[part.parameter].dtype
        return Site(part, lanes, self.map.permutations.get(part.parameter), widening(narrow, wide))


def _entries(name: str, one: TensorChange, sites: list[Site]) -> Iterator[Scattered | Whole]:
    for site in sites:
        if one.positions is None:
            yield Whole(name, site, site.part.where.lanes, one.values, one.old)
            continue
        which, places = site.select(one.positions)
        if len(places):
            yield _scattered(name, one, site, which, places)


def _scattered(name: str, one: TensorChange, site: Site, which: Any, places: Places) -> Scattered:
    lanes = site.lanes
    held = lanes.hold_places(places)
    if one.old is None:
        old = lanes.read(held)
    else:
        old = lanes.hold(site.bits(one.old[which]))
        wrong = lanes.differ(held, old)
        if wrong:
            raise Corrupt(f"{wrong} lanes of {name!r} in the engine are not what they were in the base", remedy="reload the engine")
    return Scattered(name, lanes, len(places), held, lanes.hold(site.bits(one.values[which])), old)
