import asyncio

from weightsync.control.roster import Roster
from weightsync.errors import Unavailable
from weightsync.testing.clock import ManualClock
from weightsync.v1 import fleet_pb2 as pb

NEVER_S = 3600.0


def test_what_happens_while_a_watcher_writes_is_not_waited_for():
    async def story():
        roster = Roster(10, 60.0, ManualClock())
        written = roster.since(0)
        roster.register(pb.Subscriber(name="a"))
        await roster.wait(written.revision, NEVER_S)
        written = roster.since(written.revision)
        assert [one.name for one in written.changed] == ["a"]
        roster.end(Unavailable("the server stops"))
        await roster.wait(written.revision, NEVER_S)

    asyncio.run(asyncio.wait_for(story(), 60))
