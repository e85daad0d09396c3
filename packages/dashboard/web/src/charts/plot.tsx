/** A chart over steps: lines or a stack, marks, a cursor that all charts of a page share, and its data as a table. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { axisFigures, figure, percent } from "../logic/format";
import { smooth } from "../logic/series";
import { colour } from "../theme";
import type { Figure } from "../types";
import { ChartFrame, type ReadoutItem } from "./frame";
import { axes, CURSOR, useChart } from "./uplot_parts";

export interface Line {
  label: string;
  /** The custom property that holds its colour. */
  colour: string;
  values: Figure[];
  format?: (value: Figure) => string;
}

export interface Mark {
  value: number;
  label: string;
}

export interface PlotProps {
  title: string;
  about: string;
  steps: number[];
  lines: Line[];
  marks?: Mark[];
  stacked?: boolean;
  /** Fixed ends of the vertical axis. */
  range?: [number | null, number | null];
  smoothing?: number;
  /** Whether the values are shares, for the marks of the axis. */
  asPercent?: boolean;
  /** Shown in place of the chart if there is nothing to draw. */
  absent: string;
}

export function Plot(props: PlotProps) {
  const { title, about, steps, lines, marks = [], absent } = props;
  const cursor = useSignal<number | null>(null);
  const drawn = lines.filter((line) => line.values.some((value) => value !== null));
  const at = cursor.value !== null && cursor.value < steps.length ? cursor.value : null;
  const readout: ReadoutItem[] = drawn.map((line) => ({
    label: line.label,
    colour: line.colour,
    value: (line.format ?? figure)(at === null ? lastOf(line.values) : (line.values[at] ?? null)),
  }));
  return (
    <ChartFrame
      title={title}
      about={about}
      absent={drawn.length === 0 ? absent : null}
      readout={readout}
      moment={at === null ? null : `step ${steps[at]}`}
      marks={drawn.length ? marks.map((mark) => `${mark.label} ${figure(mark.value)}`) : []}
      table={{ heads: ["step", ...drawn.map((l) => l.label)], rows: () => rowsOf(steps, drawn) }}
    >
      <Canvas {...props} lines={drawn} onCursor={(place) => (cursor.value = place)} />
    </ChartFrame>
  );
}

function Canvas(props: PlotProps & { onCursor: (place: number | null) => void }) {
  const { title, steps, lines, smoothing = 0 } = props;
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const shape = lines.map((line) => `${line.label} ${line.colour}`).join("|") + (smoothing > 0 ? "~" : "");
  const plot = useChart(box, (inside) => new uPlot(optionsOf(latest, inside), dataOf(latest.current), inside), [shape]);
  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    const { min, max } = made.scales["x"]!;
    const known = made.data[0];
    const zoomed = known.length > 1 && (min! > known[0]! || max! < known.at(-1)!);
    made.setData(dataOf(props), !zoomed);
    if (zoomed) made.redraw();
  }, [steps, lines.map((line) => line.values.length).join(), smoothing, props.lines]);
  const onKeyDown = (event: KeyboardEvent) => {
    const made = plot.current;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!made || by === undefined) return;
    event.preventDefault();
    const from = made.cursor.idx ?? (by < 0 ? steps.length : -1);
    const place = Math.max(0, Math.min(steps.length - 1, from + by));
    const point = { left: made.valToPos(steps[place]!, "x"), top: made.height / 3 };
    (made.setCursor as (point: object, tell: boolean, tellOthers: boolean) => void)(point, true, true);
  };
  return (
    <div
      ref={box}
      class="plot"
      role="img"
      tabIndex={0}
      aria-label={`${title}, steps ${steps[0] ?? 0} to ${steps.at(-1) ?? 0}. Arrow keys move the cursor.`}
      onKeyDown={onKeyDown}
    />
  );
}

function optionsOf(latest: { current: PlotProps & { onCursor: (place: number | null) => void } }, box: HTMLElement): uPlot.Options {
  const { lines, stacked = false, smoothing = 0 } = latest.current;
  const series: uPlot.Series[] = [{}];
  for (const line of stacked ? [...lines].reverse() : lines) {
    series.push({
      label: line.label,
      stroke: () => colour(line.colour),
      width: stacked ? 1 : 1.75,
      points: { size: 5, fill: () => colour(line.colour), ...(stacked && { show: false }) },
      ...((stacked || lines.length === 1) && { fill: () => (stacked ? mixed(line.colour) : colour(line.colour, 0.08)) }),
    });
    if (smoothing > 0 && !stacked) {
      series.push({ stroke: () => colour(line.colour, 0.25), width: 1, points: { show: false } });
    }
  }
  return {
    width: Math.max(200, box.clientWidth),
    height: Math.max(120, box.clientHeight),
    series,
    axes: axes((marks) => (latest.current.asPercent ? marks.map(percent) : axisFigures(marks))),
    scales: { x: { time: false }, y: { range: (_, low, high) => rangeOf(latest.current, low, high) } },
    padding: [10, 10, 0, 0],
    legend: { show: false },
    cursor: CURSOR,
    hooks: {
      setCursor: [(made) => latest.current.onCursor(made.cursor.idx ?? null)],
      draw: [(made) => drawMarks(made, latest.current.marks ?? [])],
    },
  };
}

function dataOf({ steps, lines, stacked, smoothing = 0 }: PlotProps): uPlot.AlignedData {
  if (!stacked) {
    const columns = lines.flatMap((line) => (smoothing > 0 ? [smooth(line.values, smoothing), line.values] : [line.values]));
    return [steps, ...columns] as uPlot.AlignedData;
  }
  const sums: Figure[][] = [];
  for (const line of lines) {
    const below = sums.at(-1);
    sums.push(line.values.map((value, i) => (value === null ? null : value + (below?.[i] ?? 0))));
  }
  return [steps, ...sums.reverse()] as uPlot.AlignedData;
}

/** The data with a margin. A mark is included unless it is so far off that the data would become a flat line. */
function rangeOf({ range, marks = [] }: PlotProps, low: number | null, high: number | null): [number, number] {
  let [from, to] = [low ?? 0, high ?? 1];
  const size = Math.max(Math.abs(from), Math.abs(to));
  for (const { value } of marks) {
    if (Math.abs(value) <= 2.5 * size) [from, to] = [Math.min(from, value), Math.max(to, value)];
  }
  const margin = to > from ? (to - from) * 0.08 : Math.abs(to) * 0.1 || 0.5;
  const bottom = from >= 0 && from - margin < 0 ? 0 : from - margin;
  return [range?.[0] ?? bottom, range?.[1] ?? to + margin];
}

function drawMarks(made: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = made;
  const scale = made.scales["y"]!;
  ctx.save();
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  ctx.strokeStyle = ctx.fillStyle = colour("--mark");
  ctx.font = `${10 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textAlign = "right";
  for (const { value, label } of marks) {
    if (value < scale.min! || value > scale.max!) continue;
    const y = Math.round(made.valToPos(value, "y", true));
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    const below = y - bbox.top < 14 * devicePixelRatio;
    ctx.textBaseline = below ? "top" : "bottom";
    ctx.fillText(label, bbox.left + bbox.width - 3 * devicePixelRatio, y + (below ? 3 : -3) * devicePixelRatio);
  }
  ctx.restore();
}

/** The colour laid thinly on the surface, opaque: layers of a stack must not shine through each other. */
function mixed(property: string): string {
  return colour(`${property}-soft`) || colour(property);
}

function lastOf(values: Figure[]): Figure {
  return values.findLast((value) => value !== null) ?? null;
}

function rowsOf(steps: number[], lines: Line[]): string[][] {
  return steps.map((step, i) => [String(step), ...lines.map((line) => (line.format ?? figure)(line.values[i] ?? null))]);
}
