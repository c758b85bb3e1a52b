"""What may be changed in a run's part of the store, and how: claims, commits, moves, and verified reading.

Everything that other layers need is here; `catalog` holds the facade.
"""

from weightsync.catalog.add_payload import NewPayload
from weightsync.catalog.catalog import Catalog
from weightsync.catalog.foreign_move import MovePlan
from weightsync.catalog.history import commits
from weightsync.catalog.payloads import ForeignPayload
from weightsync.catalog.values import Claim, CommitPlan, Head, NewVersion, VersionRecord

__all__ = ["Catalog", "Claim", "CommitPlan", "ForeignPayload", "Head", "MovePlan", "NewPayload", "NewVersion", "VersionRecord", "commits"]
