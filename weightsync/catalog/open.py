"""The run that settings name. Apart from `wiring`, so that commands that only look need not load publishers and engines."""

from weightsync.catalog.catalog import Catalog
from weightsync.clock import SYSTEM, Clock
from weightsync.config import Settings
from weightsync.errors import Invalid
from weightsync.store.api import ObjectStore
from weightsync.trust import load_policy


def open_catalog(settings: Settings, store: ObjectStore, *, single_writer: bool = False, clock: Clock = SYSTEM) -> Catalog:
    """The run that the settings name, in `store`. Raises `Invalid` when they name none."""
    if settings.run is None:
        raise Invalid("no run was named", remedy="give --run RUN, or set WEIGHTSYNC_RUN")
    policy = load_policy(settings.trusted_keys, settings.key)
    return Catalog(store, settings.run, policy=policy, single_writer=single_writer, clock=clock)
