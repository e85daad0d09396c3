/** The charts of a section: of one run with all their series, or of several runs with a line each. */
import { figure, percent, stepNumber, words } from "../logic/format";
import { alignSteps, column, namesIn } from "../logic/series";
import type { Bounds, Figure, StepMetrics } from "../types";
import { CHARTS, type ChartSpec, type Section, type SeriesSpec } from "./catalog";
import { Plot, type Line, type Mark } from "./plot";

interface Props {
  /** Whether the first answer is still awaited. */
  reading?: boolean;
  section: Section;
  runs: StepMetrics[][];
  /** Their names, if there are several. */
  names?: string[];
  bounds: Bounds;
  smoothing: number;
}

export function SectionCharts({ section, runs, names, bounds, smoothing, reading = false }: Props) {
  const specs = CHARTS.filter((spec) => spec.section === section);
  if (names) {
    return (
      <>
        {specs.flatMap((spec) =>
          seriesOf(spec, runs.flat()).map((series) => (
            <Overlay key={spec.title + series.metric} spec={spec} series={series} runs={runs} names={names} smoothing={smoothing} />
          )),
        )}
      </>
    );
  }
  const steps = runs[0] ?? [];
  return <>{specs.map((spec) => <Single key={spec.title} spec={spec} steps={steps} bounds={bounds} smoothing={smoothing} reading={reading} />)}</>;
}

function Single({ spec, steps, bounds, smoothing, reading }: { spec: ChartSpec; steps: StepMetrics[]; bounds: Bounds; smoothing: number; reading: boolean }) {
  const lines = seriesOf(spec, steps).map((series, i): Line => ({
    label: series.label,
    colour: spec.colours?.[i] ?? `--series-${i % 8}`,
    values: valuesOf(series, steps),
    ...(spec.format && { format: spec.format }),
  }));
  // A series that is always zero, such as a rare reason to end, only clutters the stack.
  const shown = spec.stacked && !spec.colours ? lines.filter((line) => line.values.some((value) => value !== 0 && value !== null)) : lines;
  return (
    <Plot
      title={spec.title}
      about={spec.about}
      steps={steps.map((line) => stepNumber(line.step))}
      lines={shown}
      marks={(spec.marks?.(bounds) ?? []).filter((mark): mark is Mark => mark !== null)}
      absent={reading ? "Reading…" : steps.length === 0 ? "No steps recorded yet. The first point appears after the first step." : spec.absent}
      stacked={spec.stacked ?? false}
      smoothing={smoothing}
      asPercent={spec.format === percent}
      {...(spec.range && { range: spec.range })}
    />
  );
}

interface OverlayProps {
  spec: ChartSpec;
  series: SeriesSpec;
  runs: StepMetrics[][];
  names: string[];
  smoothing: number;
}

function Overlay({ spec, series, runs, names, smoothing }: OverlayProps) {
  const valued = runs.map((lines) => lines.map((line): StepMetrics => ({ step: line.step, value: series.value ? series.value(line) : (line[series.metric] ?? null) })));
  const { steps, columns } = alignSteps(valued, "value");
  const several = !("prefix" in spec.series) && spec.series.length === 1;
  return (
    <Plot
      title={several ? spec.title : `${spec.title}: ${series.label}`}
      about={spec.about}
      steps={steps.map(stepNumber)}
      lines={columns.map((values, i) => ({
        label: names[i]!,
        colour: `--series-${i % 8}`,
        values,
        ...(spec.format && { format: spec.format }),
      }))}
      absent={`None of these runs recorded this metric. ${spec.absent}`}
      smoothing={smoothing}
      asPercent={spec.format === percent}
      {...(spec.range && { range: spec.range })}
    />
  );
}

/** A chart for each metric that no other chart shows, so that nothing a run records is hidden. */
export function OtherMetrics({ steps, smoothing }: { steps: StepMetrics[]; smoothing: number }) {
  const others = [...namesIn(steps)].filter((name) => !isCharted(name)).sort();
  return (
    <>
      {others.map((name) => (
        <Plot
          key={name}
          title={words(name)}
          about={`The metric ${name}.`}
          steps={steps.map((line) => stepNumber(line.step))}
          lines={[{ label: words(name), colour: "--series-4", values: column(steps, name), format: figure }]}
          absent="No step recorded this metric."
          smoothing={smoothing}
        />
      ))}
    </>
  );
}

// Parts of charts that are made of several metrics, and figures that say nothing over time.
const CHARTED_OTHERWISE = new Set(["sampled_share", "groups", "groups_without_variance", "episodes", "weights_version"]);

function isCharted(name: string): boolean {
  if (CHARTED_OTHERWISE.has(name)) return true;
  return CHARTS.some(({ series }) =>
    "prefix" in series ? name.startsWith(series.prefix) : series.some((one) => one.metric === name),
  );
}

function seriesOf(spec: ChartSpec, steps: StepMetrics[]): SeriesSpec[] {
  if (!("prefix" in spec.series)) return spec.series;
  const { prefix } = spec.series;
  const found = [...namesIn(steps)].filter((name) => name.startsWith(prefix)).sort();
  return found.map((metric) => ({ metric, label: words(metric.slice(prefix.length)) }));
}

function valuesOf(series: SeriesSpec, steps: StepMetrics[]): Figure[] {
  return series.value ? steps.map(series.value) : column(steps, series.metric);
}
