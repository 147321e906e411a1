"""What Prometheus reads: requests, batches, the queue, and the class mix of the latest samples."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from balpoe.deployment.serve.drift import DriftReport

__all__ = ["Metrics"]

MOST_CLASSES = 1000
"""With more of them the shares of single classes are left out: each would be four lines."""
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The numbers of one server, in a registry of their own.

    >>> metrics = Metrics()
    >>> metrics.request("/predict", 200, 0.01)
    >>> b'balpoe_requests_total{path="/predict",status="200"} 1.0' in metrics.text()
    True
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        own: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("balpoe_requests", "Requests, by path and status.", ["path", "status"], **own)
        self._seconds = Histogram("balpoe_request_seconds", "Time of /predict.", buckets=SECONDS, **own)
        self._samples = Counter("balpoe_samples", "Samples that the network saw.", **own)
        self._batch = Histogram("balpoe_batch_samples", "Samples of a batch.", buckets=SIZES, **own)
        self._batch_seconds = Histogram("balpoe_batch_seconds", "Time of a batch.", buckets=SECONDS, **own)
        self._left = Counter("balpoe_clients_left", "Requests whose client left before the answer.", **own)
        self.waiting = Gauge("balpoe_waiting_samples", "Samples that wait for the network.", **own)
        self.deaths = Gauge("balpoe_worker_deaths", "Workers that died, and were replaced.", **own)
        self._drift_samples = Gauge("balpoe_drift_samples", "Latest samples whose class mix is estimated.", **own)
        self._distance = Gauge("balpoe_drift_distance", "Total variation of estimated and assumed prior.", **own)
        self._p_value = Gauge("balpoe_drift_p_value", "P-value of the assumed prior.", **own)
        self._explained = Gauge(
            "balpoe_drift_explained", "1 if a label shift explains the samples, 0 if not, -1 unchecked.", **own
        )
        self._shares = {
            name: Gauge(f"balpoe_prior_{name}", f"{words} of each class.", ["class"], **own)
            for name, words in (
                ("assumed", "Assumed share"), ("estimated", "Estimated share"),
                ("low", "Lower end of the 95 % interval"), ("high", "Upper end of the 95 % interval"),
            )
        }  # fmt: skip

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(status)).inc()
        if path == "/predict" and status == 200:
            self._seconds.observe(seconds)

    def batch(self, samples: int, seconds: float) -> None:
        """Count a batch."""
        self._samples.inc(samples)
        self._batch.observe(samples)
        self._batch_seconds.observe(seconds)

    def client_left(self) -> None:
        """Count a request whose client did not wait for its answer."""
        self._left.inc()

    def drift(self, report: DriftReport, class_names: tuple[str, ...]) -> None:
        """Show the latest look at the class mix."""
        self._drift_samples.set(report.samples)
        self._distance.set(report.distance)
        self._p_value.set(report.p_value)
        self._explained.set(-1 if report.explained is None else int(report.explained))
        if len(class_names) > MOST_CLASSES:
            return
        shares = {"assumed": report.assumed, "estimated": report.estimate}
        shares |= {"low": report.interval[0], "high": report.interval[1]}
        for name, values in shares.items():
            for class_name, value in zip(class_names, values.tolist(), strict=True):
                self._shares[name].labels(class_name).set(value)

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self.registry)
