"""The metrics of one process, in Prometheus's format. Without the package prometheus-client nothing is kept, and nothing fails."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

from weightsync.telemetry.names import PREFIX, Metric

MISSING = "prometheus-client is not installed: pip install 'weightsync[metrics]'"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


class Board(Protocol):
    """Where values are written. Safe to use from many threads. Label values come in the order of `Metric.labels`."""

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Sets a gauge."""
        ...

    def add(self, metric: Metric, by: float = 1.0, labels: Labels = ()) -> None:
        """Raises a counter by `by`, which is not negative."""
        ...

    def observe(self, metric: Metric, value: float) -> None:
        """Counts a value in a histogram."""
        ...

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Makes `values` all that a labelled gauge has: series of subscribers and channels that are gone go too."""
        ...

    def render(self) -> bytes | None:
        """The page that Prometheus reads; None where prometheus-client is not installed."""
        ...


class NoBoard:
    """Keeps nothing."""

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Nothing."""

    def add(self, metric: Metric, by: float = 1.0, labels: Labels = ()) -> None:
        """Nothing."""

    def observe(self, metric: Metric, value: float) -> None:
        """Nothing."""

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Nothing."""

    def render(self) -> bytes | None:
        """None."""
        return None


class PrometheusBoard:
    """Keeps `metrics` in a registry of its own."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        import prometheus_client as prometheus  # noqa: PLC0415  an extra

        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, for nothing that we ask
        self._registry = prometheus.CollectorRegistry()
        self._render = prometheus.generate_latest
        prometheus.ProcessCollector(registry=self._registry)  # memory, CPU and open files, under the usual names
        self._gauges = {m: prometheus.Gauge(PREFIX + m.name, m.text, m.labels, registry=self._registry) for m in _of(metrics, "gauge")}
        self._counters = {
            m: prometheus.Counter(PREFIX + m.name, m.text, m.labels, registry=self._registry) for m in _of(metrics, "counter")
        }
        self._histograms = {
            m: prometheus.Histogram(PREFIX + m.name, m.text, m.labels, registry=self._registry, buckets=m.buckets)
            for m in _of(metrics, "histogram")
        }
        for metric, counter in self._counters.items():
            for seed in metric.seeds:
                counter.labels(*seed)

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Sets a gauge."""
        gauge = self._gauges[metric]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def add(self, metric: Metric, by: float = 1.0, labels: Labels = ()) -> None:
        """Raises a counter."""
        counter = self._counters[metric]
        (counter.labels(*labels) if labels else counter).inc(by)

    def observe(self, metric: Metric, value: float) -> None:
        """Counts a value in a histogram."""
        self._histograms[metric].observe(value)

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Sets all series of a gauge and drops the others."""
        gauge = self._gauges[metric]
        for found in gauge.collect():
            for sample in found.samples:
                labels = tuple(sample.labels[name] for name in metric.labels)
                if labels not in values:
                    gauge.remove(*labels)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)

    def render(self) -> bytes | None:
        """The page that Prometheus reads."""
        return self._render(self._registry)


def open_board(metrics: Sequence[Metric]) -> Board:
    """A board for `metrics`, or one that keeps nothing where prometheus-client is not installed."""
    return PrometheusBoard(metrics) if find_spec("prometheus_client") else NoBoard()


def _of(metrics: Sequence[Metric], kind: str) -> list[Metric]:
    return [metric for metric in metrics if metric.kind == kind]
