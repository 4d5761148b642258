"""The kinds of metrics of a node: the prefix `gossamer_`, and labels with a fixed set of values."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OTHER = "other"
"""Value of a label for whatever has none of its own."""


class CounterFamily:
    """A counter with one label, whose values are known."""

    def __init__(self, counter: Counter, values: tuple[str, ...]) -> None:
        self._children = {value: counter.labels(value) for value in (*values, OTHER)}

    def add(self, value: str, amount: float = 1) -> None:
        """Counts under the label's value, or under `other` if the value is not known."""
        self._children.get(value, self._children[OTHER]).inc(amount)


class GaugeFamily:
    """A gauge with one label, whose values are known."""

    def __init__(self, gauge: Gauge, values: tuple[str, ...]) -> None:
        self._children = {value: gauge.labels(value) for value in values}

    def set(self, value: str, number: float) -> None:
        """Sets the gauge of a value. Raises KeyError for an unknown value, which is a bug."""
        self._children[value].set(number)

    def set_only(self, value: str | None) -> None:
        """Sets 1 for this value and 0 for all others, or 0 for all if it is None."""
        for name, child in self._children.items():
            child.set(1 if name == value else 0)


class Registrar:
    """Makes the metrics of one registry, with their common prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, namespace="gossamer", registry=self._registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, text, labels, namespace="gossamer", registry=self._registry)

    def counters(self, name: str, text: str, label: str, values: tuple[str, ...]) -> CounterFamily:
        return CounterFamily(self.counter(name, text, [label]), values)

    def gauges(self, name: str, text: str, label: str, values: tuple[str, ...]) -> GaugeFamily:
        return GaugeFamily(self.gauge(name, text, [label]), values)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(
            name, text, labels, namespace="gossamer", registry=self._registry, buckets=buckets
        )
