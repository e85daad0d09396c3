/** Metrics by step: merging what arrives live, taking a column, smoothing it. */
import type { Figure, Span, StepMetrics, Verdict } from "../types";

/** Known and new steps, in order; a step that comes again replaces the old one. */
export function mergeSteps(known: StepMetrics[], arrived: StepMetrics[]): StepMetrics[] {
  if (arrived.length === 0) return known;
  const last = known.at(-1);
  if (!last || arrived.every((line, i) => line.step > (arrived[i - 1]?.step ?? last.step))) return [...known, ...arrived];
  const byStep = new Map(known.map((line) => [line.step, line]));
  for (const line of arrived) byStep.set(line.step, line);
  return [...byStep.values()].sort((one, other) => one.step - other.step);
}

export function mergeVerdicts(known: Verdict[], arrived: Verdict[]): Verdict[] {
  return mergeBy(known, arrived, (verdict) => `${verdict.step} ${verdict.name} ${verdict.what}`);
}

export function mergeSpans(known: Span[], arrived: Span[]): Span[] {
  return mergeBy(known, arrived, (span) => `${span.activity} ${span.start}`);
}

function mergeBy<T>(known: T[], arrived: T[], key: (item: T) => string): T[] {
  const seen = new Set(known.map(key));
  const fresh = arrived.filter((item) => !seen.has(key(item)));
  return fresh.length === 0 ? known : [...known, ...fresh];
}

/** A metric over the steps; null if a step does not have it. */
export function column(steps: StepMetrics[], name: string): Figure[] {
  return steps.map((line) => line[name] ?? null);
}

/** The names of the metrics that any of the steps has. */
export function namesIn(steps: StepMetrics[]): Set<string> {
  const names = new Set<string>();
  for (const line of steps) for (const name in line) if (line[name] !== null) names.add(name);
  names.delete("step");
  return names;
}

/**
 * An exponential moving average that is unbiased from its first value on. `weight` from 0 (the values as they are) to
 * below 1; gaps stay gaps and do not count.
 */
export function smooth(values: Figure[], weight: number): Figure[] {
  if (weight <= 0) return values;
  let mean = 0;
  let trust = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + value * (1 - weight);
    trust = trust * weight + (1 - weight);
    return mean / trust;
  });
}

/** Columns of several runs over all their steps; null if a run does not have a step. */
export function alignSteps(runs: StepMetrics[][], name: string): { steps: number[]; columns: Figure[][] } {
  const steps = [...new Set(runs.flatMap((lines) => lines.map((line) => line.step)))].sort((a, b) => a - b);
  const columns = runs.map((lines) => {
    const byStep = new Map(lines.map((line) => [line.step, line[name] ?? null]));
    return steps.map((step) => byStep.get(step) ?? null);
  });
  return { steps, columns };
}

export interface Stretch {
  name: string;
  severity: Verdict["severity"];
  from: number;
  to: number;
  last: Verdict;
}

/** Verdicts of the same name and severity on consecutive steps, merged into stretches; by name. */
export function stretches(verdicts: Verdict[]): Map<string, Stretch[]> {
  const rows = new Map<string, Stretch[]>();
  for (const verdict of [...verdicts].sort((one, other) => one.step - other.step)) {
    const name = verdict.name || "other";
    const row = rows.get(name) ?? [];
    rows.set(name, row);
    const open = row.at(-1);
    if (open && open.severity === verdict.severity && verdict.step <= open.to + 1) {
      open.to = verdict.step;
      open.last = verdict;
    } else row.push({ name, severity: verdict.severity, from: verdict.step, to: verdict.step, last: verdict });
  }
  return rows;
}
