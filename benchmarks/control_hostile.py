"""A caller with a subscriber's token that floods the control plane with false names and leases, beside one that only asks."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from weightsync.v1 import channels_pb2, fleet_pb2, leases_pb2

FLEET, LEASES, CHANNELS = "/weightsync.v1.FleetService/", "/weightsync.v1.LeaseService/", "/weightsync.v1.ChannelService/"
AT_ONCE = 32
HOSTILE, HONEST = "hostile-0123456789ab", "honest-0123456789abc"


def write_tokens(path: Path) -> None:
    """Both are subscribers; the honest one's name is its own."""
    path.write_text(
        f'[[tokens]]\ntoken = "{HOSTILE}"\nrole = "subscriber"\n[[tokens]]\ntoken = "{HONEST}"\nrole = "subscriber"\nname = "honest"\n'
    )


async def flood(address: str, run: str, reports: int, leases: int) -> Counter[str]:
    """Registers and reports under ever new names, takes leases for all of them; what came back, by status."""
    outcomes: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(address) as channel:
        calls = _calls(run, reports, leases)

        async def work() -> None:
            for path, request in calls:
                try:
                    await channel.unary_unary(path)(request, metadata=(("authorization", f"Bearer {HOSTILE}"),), timeout=30)
                    outcomes["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    outcomes[error.code().name] += 1

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return outcomes


def _calls(run: str, reports: int, leases: int) -> Iterable[tuple[str, bytes]]:
    text = "x" * 512
    for number in range(max(reports, leases)):
        name = f"fake-{number}"
        if number < reports:
            yield FLEET + "Register", fleet_pb2.RegisterRequest(run=run, subscriber=name, region=text[:128]).SerializeToString()
            report = fleet_pb2.SubscriberReport(error=text)
            yield FLEET + "Report", fleet_pb2.ReportRequest(run=run, subscriber=name, report=report).SerializeToString()
        if number < leases:
            yield LEASES + "Acquire", leases_pb2.AcquireRequest(run=run, holder=name, version=1).SerializeToString()
        if number == 0:
            yield FLEET + "Report", fleet_pb2.ReportRequest(run=run, subscriber="honest").SerializeToString()


class Asker:
    """Asks where `latest` is, 20 times a second, and notes how long each answer took (milliseconds)."""

    def __init__(self, address: str, run: str) -> None:
        self._address, self._request = address, channels_pb2.GetChannelRequest(run=run).SerializeToString()
        self.took_ms: list[float] = []

    async def ask(self, seconds: float) -> dict[str, float]:
        """For so long, or until cancelled."""
        self.took_ms = []
        with suppress(asyncio.CancelledError):
            async with grpc.aio.insecure_channel(self._address) as channel:
                end_s = time.perf_counter() + seconds
                while time.perf_counter() < end_s:
                    start_s = time.perf_counter()
                    await channel.unary_unary(CHANNELS + "GetChannel")(self._request, metadata=(("authorization", f"Bearer {HONEST}"),))
                    self.took_ms.append(1000 * (time.perf_counter() - start_s))
                    await asyncio.sleep(0.05)
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """Quantiles."""
        cuts = statistics.quantiles(self.took_ms, n=100)
        return {"answers": len(self.took_ms), "p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}
