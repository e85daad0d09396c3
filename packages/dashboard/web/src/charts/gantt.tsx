/** The timeline of a run: a row for each activity, and for the times when sampler or learner was idle. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { duration, percent, stepNumber } from "../logic/format";
import { gapsOf, spanAt, withIdle, type Bar } from "../logic/gantt_rows";
import { colour } from "../theme";
import type { Span } from "../types";
import { ChartFrame } from "./frame";
import { axes, useChart } from "./uplot_parts";

const ROWS = ["collect", "sampler idle", "update", "publish", "save", "learner idle"] as const;
const COLOURS: Record<string, string> = {
  collect: "--series-0",
  update: "--series-1",
  publish: "--series-2",
  save: "--series-3",
  "sampler idle": "--idle",
  "learner idle": "--idle",
};
const STEPS_IN_VIEW = 6;

export function Gantt({ spans }: { spans: Span[] }) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<[number, number] | null>(null); // what the reader zoomed to; null: the last steps
  const pointed = useSignal<Bar | null>(null);
  const bars = withIdle(spans);
  const latest = useRef(bars);
  latest.current = bars;
  const start = Math.min(...spans.map((span) => span.start));
  const end = Math.max(...spans.map((span) => span.end));
  const recent = (): [number, number] => {
    const last = Math.max(...spans.map((span) => span.step));
    const shown = spans.filter((span) => span.step > last - STEPS_IN_VIEW);
    return [Math.min(...shown.map((span) => span.start)) - start, end - start];
  };
  const hasSpans = spans.length > 0;
  const plot = useChart(
    box,
    (inside) => {
      if (!hasSpans) return null;
      const made = new uPlot(optionsOf(inside, latest, pointed), [[0, end - start], [0, 0]], inside);
      const [min, max] = recent();
      made.setScale("x", { min, max });
      return made;
    },
    [hasSpans],
  );
  const zoom = (range: [number, number]) => plot.current?.setScale("x", { min: range[0], max: range[1] });
  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData([[0, end - start], [0, 0]], false);
    zoom(view.current ?? recent());
  }, [spans]);
  const show = (range: [number, number] | null) => {
    view.current = range;
    zoom(range ?? recent());
  };
  const by = (factor: number) => {
    const { min, max } = plot.current?.scales["x"] ?? {};
    if (typeof min !== "number" || typeof max !== "number") return;
    const middle = (min + max) / 2;
    const half = ((max - min) / 2) * factor;
    show([Math.max(0, middle - half), Math.min(end - start, middle + half)]);
  };
  const bar = pointed.value;
  return (
    <ChartFrame
      wide
      title="Pipeline"
      about="When the episodes of each step were collected, and its update was made, published and saved. Gaps mean that the sampler or the learner was idle."
      absent={hasSpans ? null : "No timeline recorded yet. It appears after the first step."}
      readout={hasSpans ? totals(spans) : []}
      moment={bar && `${bar.row}${bar.step === null ? "" : `, step ${stepNumber(bar.step)}`}: ${duration(bar.to - bar.from)}`}
      table={{
        heads: ["step", "activity", "began after", "took"],
        rows: () => spans.map((s) => [String(stepNumber(s.step)), s.activity, duration(s.start - start), duration(s.end - s.start)]),
      }}
      tools={
        hasSpans && (
          <>
            <button type="button" onClick={() => by(0.5)} aria-label="Zoom in">+</button>
            <button type="button" onClick={() => by(2)} aria-label="Zoom out">−</button>
            <button type="button" onClick={() => show(null)}>Last steps</button>
            <button type="button" onClick={() => show([0, end - start])}>All</button>
          </>
        )
      }
    >
      <div ref={box} class="plot gantt" role="img" aria-label="Timeline of the run; the table below has its data" />
    </ChartFrame>
  );
}

function totals(spans: Span[]) {
  const whole = Math.max(...spans.map((span) => span.end)) - Math.min(...spans.map((span) => span.start));
  return ["collect", "update", "publish", "save"].map((activity) => {
    const idle = gapsOf(spans, [activity]).reduce((sum, gap) => sum + gap.to - gap.from, 0);
    return { label: activity, colour: COLOURS[activity]!, value: percent(whole > 0 ? 1 - idle / whole : null) };
  });
}

function optionsOf(box: HTMLElement, latest: { current: Bar[] }, pointed: { value: Bar | null }): uPlot.Options {
  const [x, y] = axes((marks) => marks.map(String), (marks) => marks.map((seconds) => duration(Math.max(0, seconds)))) as [uPlot.Axis, uPlot.Axis];
  return {
    width: Math.max(200, box.clientWidth),
    height: box.clientHeight,
    series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
    axes: [
      { ...x, space: 80 },
      { ...y, size: 84, grid: { show: false }, splits: () => ROWS.map((_, i) => i), values: () => [...ROWS] },
    ],
    padding: [8, 10, 0, 0],
    scales: { x: { time: false }, y: { range: [-0.5, ROWS.length - 0.5], dir: -1 } },
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, points: { show: false }, y: false },
    hooks: {
      draw: [(plot) => drawBars(plot, latest.current)],
      setCursor: [
        (plot) => {
          const { left = -1, top = -1 } = plot.cursor;
          const row = ROWS[Math.round(plot.posToVal(top, "y"))];
          pointed.value = left < 0 || row === undefined ? null : spanAt(latest.current, row, plot.posToVal(left, "x"));
        },
      ],
    },
  };
}

function drawBars(plot: uPlot, bars: Bar[]): void {
  const { ctx, bbox } = plot;
  const { min, max } = plot.scales["x"]!;
  const height = (bbox.height / ROWS.length) * 0.62;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const bar of bars) {
    if (bar.to < min! || bar.from > max!) continue;
    const row = ROWS.findIndex((name) => name === bar.row);
    const left = plot.valToPos(bar.from, "x", true);
    const width = Math.max(devicePixelRatio, plot.valToPos(bar.to, "x", true) - left - devicePixelRatio / 2);
    ctx.fillStyle = colour(COLOURS[bar.row] ?? "--muted");
    ctx.beginPath();
    ctx.roundRect(left, plot.valToPos(row, "y", true) - height / 2, width, height, Math.min(3 * devicePixelRatio, width / 2));
    ctx.fill();
  }
  ctx.restore();
}
