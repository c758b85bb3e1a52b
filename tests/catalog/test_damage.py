"""Every bit of every record flipped, every truncation: refused with a typed error, or proved to change nothing."""

import pytest

from tests.catalog.world import RUN, World
from weightsync.errors import Corrupt, Unsupported


@pytest.fixture(scope="module")
def published() -> World:
    world = World()
    world.publish(2)
    return world


def readers(world):
    record = world.record(2)
    log = next(stat.key for stat in world.store.list(f"{RUN}/channels/latest/log/2-")).removeprefix(f"{RUN}/")
    return {
        "run.json": lambda: world.catalog().run(),
        "channels/latest/head": lambda: world.catalog().head(),
        log: lambda: world.catalog().committed(),
        "versions/2/manifest": lambda: world.catalog().manifest_of(2, record.ref.manifest),
        "versions/2/payloads/1-1": lambda: world.catalog().payload(record, 1, "1"),
    }


NAMES = ["run.json", "channels/latest/head", "log", "versions/2/manifest", "versions/2/payloads/1-1"]


@pytest.fixture(params=NAMES)
def target(request, published):
    found = readers(published)
    key = next(key for key in found if request.param in key)
    good = published.data(key)
    yield key, good, found[key]
    published.overwrite(key, good)
    found[key]()


def test_every_flipped_bit(published, target):
    key, good, read = target
    for position in range(len(good)):
        for bit in range(8) if position % 16 == 0 else (position % 8,):  # every byte, and every bit of some
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            published.overwrite(key, bytes(damaged))
            with pytest.raises((Corrupt, Unsupported)):
                read()


def test_every_truncation_and_some_growth(published, target):
    key, good, read = target
    for bad in (*(good[:end] for end in range(len(good))), good + b" ", good + b"\0", good + good, b"\n" + good):
        published.overwrite(key, bad)
        with pytest.raises((Corrupt, Unsupported), match=key):
            read()
