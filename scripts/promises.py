"""Measures the promises of promises.toml and says which hold.

A promise is kept by one of:

  command = "…"               exit status 0 means that it holds;
  command = "…", figure, bar  the last line on stdout is a JSON object, and its entry `figure` is held against `bar`;
  test = "tests/…::test_…"    the test passes; with figure and bar, on what it recorded with `record_property`.

A test with covered_by = "pytest" is not run again where --junit names the report of a pytest run: the verdict is read
there. Promises that share a command share its run, and all tests that have to run share one pytest.

A command has the machine to itself, as what is timed must. Those with beside = true, which look at what happens and not
at how fast, run first and two at a time, those that take longest (about_s) before the others; what such a command says
is shown when it has ended. With --full every command has the machine to itself.

A promise with speed = true is about speed or memory. Its bar is absolute with --full. Without, the
machine may do other things meanwhile: a figure that misses its bar is recorded, and fails only if it is more than twice
the bar (for >=, less than half of it) in two measurements. All other bars are exact, and measured once.

With --full each figure is stored in bench/figures.json as soon as its command has ended (scripts/figures.py says what
is in it). --full --stale measures those that are missing there or older than their code, so it continues a run that was
stopped; --stale-list prints them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from figures import BAR, Figure, Sources, commit_of, meets, out_of_date, read_figures, today, write_figure
from promise_runs import Outcome, read_junit, run_beside, run_command, run_tests

ROOT = Path(__file__).resolve().parent.parent
NOISE = 2.0  # how many times a speed can be off in the gate before it counts
HOLDS, MISSED, RECORDED, NOT_MEASURED = "holds", "DOES NOT HOLD", "recorded (misses its bar)", "not measured"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One entry of promises.toml.

    Promise(id="parity", says="Sampler and learner agree on every token.", command="python bench/parity.py",
            figure="max_abs_error", bar="<= 1e-4", full="python bench/parity.py --model Qwen/Qwen3-0.6B")
    """

    id: str
    says: str
    command: str | None = None
    test: str | None = None
    covered_by: str | None = None
    figure: str | None = None
    bar: str | None = None
    size: str = "ci"
    full: str | None = None
    timeout_s: float = 900.0
    beside: bool = False
    about_s: float = 0.0
    speed: bool = False
    code: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.command is None) == (self.test is None):
            raise ValueError("needs either `command` or `test`")
        if self.covered_by not in (None, "pytest") or (self.covered_by and self.test is None):
            raise ValueError('`covered_by` can only be "pytest", and needs `test`')
        if (self.figure is None) != (self.bar is None):
            raise ValueError("`figure` and `bar` go together")
        if self.bar is not None and not BAR.match(self.bar):
            raise ValueError(f'`bar` is {self.bar!r}; write it like "<= 1e-4"')
        if self.size not in ("ci", "full"):
            raise ValueError('`size` is "ci" or "full"')
        if self.beside and self.command is None:
            raise ValueError("`beside` needs `command`")
        if self.speed and self.bar and not (self.bar[0] in "<>" and float(BAR.match(self.bar)[2]) > 0):
            raise ValueError(f"`speed` needs a bound above 0 and <= or >=, `bar` is {self.bar!r}")

    @property
    def full_run(self) -> str:
        """The command or the test that measures it at full size."""
        return self.test or self.full or self.command or ""

    @property
    def keeps_figure(self) -> bool:
        """Whether its figure is stored: the gate does not measure it, or not at this size, or not exactly."""
        return self.figure is not None and (self.size == "full" or self.full is not None or self.speed)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One row of the table."""

    id: str
    says: str
    measured: str
    bar: str
    holds: bool | None  # None: not decided
    verdict: str
    seconds: float
    value: float | None = None
    is_far_off: bool = False  # a speed beyond what noise explains


def read_promises(path: Path) -> list[Promise]:
    """All promises of a file. A mistake in it ends the program with a sentence."""
    try:
        entries = tomllib.loads(path.read_text())["promise"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise SystemExit(f"{path}: {error!r}. It needs [[promise]] entries.") from error
    promises: list[Promise] = []
    for number, entry in enumerate(entries, start=1):
        name = entry.get("id", f"number {number}")
        try:
            promises.append(Promise(**entry | {"code": tuple(entry.get("code", ()))}))
        except (TypeError, ValueError) as error:
            raise SystemExit(f"{path}: promise {name}: {error}.") from error
        if name in [p.id for p in promises[:-1]]:
            raise SystemExit(f"{path}: two promises have the id {name}.")
    return promises


def judge(promise: Promise, outcome: Outcome, *, full: bool) -> Verdict:
    """Hold an outcome against the bar."""
    value = number_of(outcome.figures.get(promise.figure)) if promise.figure else None

    def row(measured: str, holds: bool | None, verdict: str, *, is_far_off: bool = False) -> Verdict:
        return Verdict(
            id=promise.id, says=promise.says, measured=measured, bar=promise.bar or "passes", holds=holds,
            verdict=verdict, seconds=outcome.seconds, value=value, is_far_off=is_far_off,
        )  # fmt: skip

    if outcome.problem and not (outcome.only_speed and value is not None):
        # If a test asserts a speed itself, nobody knows how far it is off.
        return row(outcome.problem, False, MISSED, is_far_off=promise.speed and promise.figure is None)
    if promise.figure is None or promise.bar is None:
        return row("passes", True, HOLDS)
    if value is None:
        return row(f"no figure {promise.figure}", False, MISSED)
    if meets(value, promise.bar):
        return row(f"{value:.4g}", True, HOLDS)
    if full or not promise.speed:
        return row(f"{value:.4g}", False, MISSED)
    if meets(value, promise.bar, room=NOISE):
        return row(f"{value:.4g}", None, RECORDED)
    return row(f"{value:.4g}", False, MISSED, is_far_off=True)


def number_of(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


Store = Callable[[Promise, Verdict], None]


def measure(
    promises: Iterable[Promise], *, full: bool, junit: Path | None, store: Store | None = None
) -> list[Verdict]:
    """Run what has to run, each thing once, and judge every promise in the order of the file.

    `store` is told of each verdict as soon as there is one, except of those that are read from a report.
    """
    promises = list(promises)
    due = [p for p in promises if full or p.size == "ci"]
    # A report may be of other code, and of a machine that was shared.
    covered = [p for p in due if junit and p.covered_by and not (full and p.keeps_figure)]
    read = {p.id: judge(p, read_junit(junit, p.test), full=full) for p in covered}
    verdicts = read | measure_now([p for p in due if p.id not in read], full=full, store=store)
    if not full:
        far_off = [p for p in due if verdicts[p.id].is_far_off]
        for id, again in measure_now(far_off, full=full, alone=True).items():
            both = f"{verdicts[id].measured}, then {again.measured}"
            verdicts[id] = dataclasses.replace(again, measured=both, seconds=verdicts[id].seconds + again.seconds)
    return [verdicts.get(p.id) or not_measured(p) for p in promises]


def measure_now(
    promises: list[Promise], *, full: bool, alone: bool = False, store: Store | None = None
) -> dict[str, Verdict]:
    """The verdicts on promises by their ids. `alone`: no two commands share the machine."""
    verdicts: dict[str, Verdict] = {}
    for outcomes in runs(promises, full=full, alone=alone or full):
        for promise in promises:
            key = what_runs(promise, full=full)
            if key in outcomes:
                verdicts[promise.id] = judge(promise, outcomes[key], full=full)
                if store is not None:
                    store(promise, verdicts[promise.id])
    return verdicts


def runs(promises: list[Promise], *, full: bool, alone: bool) -> Iterator[dict[str, Outcome]]:
    """Outcomes as they come: of what may share the machine, then of the tests, then of the other commands."""
    done: dict[str, Outcome] = {} if alone else run_beside(promises)
    yield done
    files: dict[str, list[Promise]] = {}
    for promise in promises:
        if promise.test:
            # At full size a file at a time: what was measured is stored before the next begins.
            files.setdefault(promise.test.partition("::")[0] if full else "", []).append(promise)
    for own in files.values():
        yield run_tests([p.test for p in own], sum(p.timeout_s for p in own))
    for promise in promises:
        command = what_runs(promise, full=full)
        if promise.command and command not in done:
            print(f"{promise.id}: {command}", file=sys.stderr, flush=True)
            timeout_s = max(p.timeout_s for p in promises if what_runs(p, full=full) == command)
            done[command] = run_command(command, timeout_s)
            yield {command: done[command]}


def what_runs(promise: Promise, *, full: bool) -> str:
    return promise.full_run if full else promise.test or promise.command or ""


def not_measured(promise: Promise) -> Verdict:
    shown = {"measured": "only with --full", "bar": promise.bar or "passes", "holds": None, "seconds": 0.0}
    return Verdict(id=promise.id, says=promise.says, verdict=NOT_MEASURED, **shown)


def show(verdicts: list[Verdict]) -> None:
    styles = {HOLDS: "green", MISSED: "bold red", RECORDED: "yellow", NOT_MEASURED: "dim"}
    table = Table("id", "promise", "measured", "bar", "verdict", "seconds")
    for v in verdicts:
        verdict = f"[{styles[v.verdict]}]{v.verdict}"
        table.add_row(v.id, escape(v.says), escape(v.measured), escape(v.bar), verdict, f"{v.seconds:.1f}")
    # Where output goes to a file, as in CI, rich assumes 80 columns, which is narrower than the table.
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def storing(root: Path, promises: Iterable[Promise]) -> Store:
    """Stores the figures of these promises. Their code is that of now: what changes meanwhile makes them stale."""
    sources, commit = Sources(root), commit_of(root)
    codes = {p.id: sources.digest(p) for p in promises if p.keeps_figure}

    def store(promise: Promise, verdict: Verdict) -> None:
        if promise.id not in codes or verdict.value is None:
            return
        figure = Figure(
            figure=promise.figure, value=verdict.value, bar=promise.bar, holds=verdict.holds, date=today(),
            commit=commit, seconds=round(verdict.seconds, 1), code=codes[promise.id],
        )  # fmt: skip
        write_figure(root, promise.id, figure)

    return store


def list_stale(promises: list[Promise], root: Path) -> None:
    """A line for each figure that is missing or older than its code."""
    stale = out_of_date(promises, read_figures(root), Sources(root))
    width = max((len(id) for id in stale), default=0)
    for id, reason in stale.items():
        print(f"{id:<{width}}  {reason}")
    kept = sum(p.keeps_figure for p in promises)
    print(f"{len(stale)} of {kept} figures of full size are missing or older than their code.", end="")
    print(" To measure them: scripts/promises --full --stale" if stale else "")


def parse_options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="the promises to measure")
    parser.add_argument("--all", action="store_true", help="measure all of them")
    parser.add_argument("--full", action="store_true", help="at full size, where a promise has one; stores the figures")
    parser.add_argument("--stale", action="store_true", help="with --full: those without a figure of this code")
    parser.add_argument("--stale-list", action="store_true", help="measure nothing, print those")
    parser.add_argument("--junit", type=Path, help="the report of a pytest run to read covered tests from")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the verdicts there, as JSON")
    parser.add_argument("--file", type=Path, default=ROOT / "promises.toml", help="default: promises.toml")
    options = parser.parse_args()
    if options.stale and not options.full:
        parser.error("--stale needs --full; --stale-list only prints them")
    if (options.stale or options.stale_list) and not options.ids:
        options.all = True
    if bool(options.ids) == options.all:
        parser.error("name the promises to measure, or say --all")
    if options.junit and not options.junit.exists():
        parser.error(f"there is no report {options.junit}")
    return parser, options


def main() -> None:
    parser, options = parse_options()
    promises = read_promises(options.file)
    unknown = sorted(set(options.ids) - {p.id for p in promises})
    if unknown:
        parser.error(f"no promise {', '.join(unknown)}; there are: {', '.join(p.id for p in promises)}")
    chosen = [p for p in promises if options.all or p.id in options.ids]
    root = options.file.resolve().parent
    if options.stale_list:
        list_stale(chosen, root)
        return
    if options.stale:
        stale = out_of_date(chosen, read_figures(root), Sources(root))
        chosen = [p for p in chosen if p.id in stale]
    store = storing(root, chosen) if options.full else None
    verdicts = measure(chosen, full=options.full, junit=options.junit, store=store)
    text = json.dumps([dataclasses.asdict(v) for v in verdicts], indent=2, ensure_ascii=False)
    if options.save:
        options.save.write_text(text + "\n")
    if options.json:
        print(text)
    else:
        show(verdicts)
    if options.full:
        print("The figures are in bench/figures.json.", file=sys.stderr)
    broken = [v for v in verdicts if v.holds is False]
    for v in broken:  # once more, where one looks last
        print(f"{v.id} does not hold: {v.measured}, wanted {v.bar}", file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
