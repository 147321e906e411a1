"""What decisions promise, what came of it over all models and priors, and whether that holds: rows of a table."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]
Row = tuple[str, str, str, str]


def summary(known: Record) -> Iterator[Row]:
    """Yield a promise, its bar, what was measured, and whether it holds."""
    record = known["decisions"]
    yield from _sets(record)
    yield from _decisions(record)
    yield from _abstaining(record)
    yield from _places(known)
    yield from _unknown(known["unknown"])
    yield from _speed(known["decisions_speed"])


def rows_of(record: Record, *path: str, **wanted: object) -> list[Record]:
    """Rows of all models that are as wanted."""
    found: list[Record] = []
    for each in record.values():
        part: Any = each
        for name in path:
            part = part.get(name, {})
        found += [row for row in part if all(row[key] == value for key, value in wanted.items())]
    return found


def between(values: Iterable[float], digits: int = 1) -> str:
    """The least and the most of some numbers."""
    known = sorted(values)
    low, high = (f"{end:.{digits}f}" for end in (known[0], known[-1]))
    return low if low == high else f"{low} to {high}"


def yes(holds: bool) -> str:
    """Whether a bar holds, in a word."""
    return "yes" if holds else "**no**"


def _sets(record: Record) -> Iterator[Row]:
    for way, key, what in (
        ("marginal", "coverage", "sets, marginal: 90 % of all samples are covered"),
        ("per-class", "macro", "sets, per class: 90 % in the mean over classes"),
    ):
        values = [100 * row[key][0] for row in rows_of(record, "sets", "rows", way=way)]
        yield what, "89 to 91 %", f"{between(values)} %", yes(all(abs(value - 90) <= 1 for value in values))
    for way in ("per-class", "marginal"):
        rows = [row for row in rows_of(record, "sets", "rows", way=way) if "classes of all" in row]
        lowest = [100 * row["classes of all"][0] for row in rows]
        yield f"... the class that {way} sets cover least, mean over splits", "-", f"{between(lowest, 0)} %", "no bar"
    held_out = [100 * row["coverage"][0] for row in rows_of(record, "sets", "held out", way="marginal")]
    what = "sets, marginal, from a run's own held-out samples"
    yield what, "90 % or more", f"{between(held_out)} %", yes(min(held_out) >= 90)


def _decisions(record: Record) -> Iterator[Row]:
    changes = [row["change"] for row in rows_of(record, "costs")]
    dearer = sum(low > 0 for _, low, _ in changes)
    found = f"{between(value for value, _, _ in changes)} %; certainly above in {dearer} of {len(changes)}"
    yield "costs: never above the most probable class's", "0 %, or noise", found, yes(dearer == 0)
    gains = [row["gain"][0] for row in rows_of(record, "metrics")]
    yield "rule for macro F1: gain over the most probable class", "0 points", f"{between(gains)}", yes(min(gains) >= 0)
    kept = [100 * row["kept"] for row in rows_of(record, "recalls", confidence=0.95)]
    what = "recall of 80 % at confidence 0.95: rules that measure it"
    yield what, "about 91 % (*)", f"{between(kept, 0)} %", yes(min(kept) >= 85)  # 100 rules: two standard errors
    for aim in ("recall", "precision"):
        found_rows = rows_of(record, "thresholds", "rows", aim=aim)
        new = [row["new"][0] for row in found_rows]
        share = between((row["kept"] for row in found_rows), 0)
        what = f"thresholds of classes fitted for a {aim} of 80 %: on new samples"
        yield what, "no promise", f"{between(new)} %; {share} % of the classes keep it", "no bar"
    right = [row["answered right"][0] for row in rows_of(record, "tree")]
    what = "labels of the tree at a confidence of 0.9 are right"
    yield what, "90 % or more", f"{between(right)} %", yes(min(right) >= 90)


def _abstaining(record: Record) -> Iterator[Row]:
    for part, way, key, what in (
        ("abstaining", "promised", "kept", "abstaining: an error of 10 %, at confidence 0.95"),
        ("groups", "error in each group", "kept in each", "... in the answers of each shot group"),
    ):
        rows = rows_of(record, part, "rows", way=way)
        splits = next(each[part]["splits"] for each in record.values() if part in each)
        kept, silent = [100 * row[key] for row in rows], 100 * sum(row["silent"] for row in rows) / (splits * len(rows))
        found = f"kept in {between(kept, 0)} % of the splits; nothing answered in {silent:.0f} %"
        yield what, "95 %", found, yes(min(kept) >= 95)


def _places(known: Record) -> Iterator[Row]:
    shares = [each["rows"][0]["shrunk counts"]["regained"] for each in known["sites"].values()]
    what = "20 sites, Dirichlet(0.1): 200 labels regain of what exact priors gain"
    yield what, "90 %", f"{between(share[0] for share in shares)} %", yes(min(share[1] for share in shares) >= 90)
    whole = known["prior_tracking"]["rows"][-1]
    for family in (name for name, number in known["prior_tracking"]["streams"].items() if number):
        gain, one, below = (
            whole[f"{family} {name}"] for name in ("over as trained", "over one estimate", "below exact")
        )
        found = f"{gain[0]:+.1f} over none, {one[0]:+.1f} over one estimate, {below[0]:.1f} below the exact prior"
        yield f"a tracked prior ({family}) gains over a whole stream, points", "0", found, yes(min(gain[1], one[1]) > 0)


def _unknown(record: Record) -> Iterator[Row]:
    for name, each in record.items():
        if "runs" not in each:
            continue
        scores = [run["rows"]["probability"]["left out"] for run in each["runs"]]
        every, few = (between((100 * score[group]["auroc"] for score in scores), 0) for group in ("all", "few"))
        found = f"AUROC {every}; against few-shot classes {few} (50 is random)"
        yield f"unknown, 20 classes left out, {name}", "-", found, "no bar"


def _speed(record: Record) -> Iterator[Row]:
    most = max(row["rows"] for row in record["rows"])
    rows = [row for row in record["rows"] if row["rows"] == most]
    slowest = max(row["processor_seconds"] for row in rows)
    what, found = f"speed: {most:,} rows of 100 classes on two cores", f"{slowest:.1f} s of the processor at most"
    yield what, "10 s, so 20 s of the processor", found, yes(slowest < 20)
    grown = [row["kind"] for row in rows if row["mib"] > 200]
    found = f"{len(rows) - len(grown)} of {len(rows)}" + (f"; not: {', '.join(grown)}" if grown else "")
    yield "... in memory below half of the rows'", "all", found, yes(not grown)
