/** The ratios of a step's tokens, by the sign of their advantage, with the bounds of the clip. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { runUrl, useAnswer } from "../api";
import { axisFigures, count, figure, percent, stepNumber } from "../logic/format";
import { colour } from "../theme";
import type { Ratios } from "../types";
import { ChartFrame } from "./frame";
import { axes, useChart } from "./uplot_parts";

const BETTER = "--scale-up";
const WORSE = "--scale-down";

export function RatioHistogram({ run, newest }: { run: string; newest: number }) {
  const chosen = useSignal<number | null>(null); // null: the newest
  const { data, error } = useAnswer<Ratios>(
    runUrl(run, `/ratios${chosen.value === null ? "" : `?step=${chosen.value}`}`),
    chosen.value === null ? newest : 0,
  );
  const pointed = useSignal<number | null>(null);
  const absent = error
    ? `${error.what}. ${error.fix}`
    : data && data.tokens > 0
      ? null
      : data
        ? "No token of this step carried loss, so there are no ratios."
        : "Reading the ratios…";
  const outside = data ? data.below + data.above : 0;
  const bin = pointed.value;
  const steps = data?.steps ?? [];
  const stepName = data ? `step ${stepNumber(data.step)}` : "step";
  const at = data ? steps.indexOf(data.step) : -1;
  return (
    <ChartFrame
      wide
      title="Ratio histogram"
      about="New divided by old probability of each token in an update, as last computed by the learner."
      absent={absent}
      readout={
        data
          ? [
              { label: "better than the group", colour: BETTER, value: count(sum(data.positive)) },
              { label: "worse", colour: WORSE, value: count(sum(data.negative)) },
            ]
          : []
      }
      marks={data ? [`clip ${boundsOf(data).map(figure).join(" – ")}`, ...(outside ? [`${percent(outside / data.tokens)} outside the axis`] : [])] : []}
      moment={
        data && bin !== null && data.edges[bin + 1] !== undefined
          ? `${figure(data.edges[bin])} to ${figure(data.edges[bin + 1])}: ${count(data.positive[bin])} better, ${count(data.negative[bin])} worse`
          : null
      }
      tools={
        steps.length > 0 && (
          <>
            <label class="step-slider">
              <span>{stepName}</span>
              <input
                type="range"
                min={0}
                max={steps.length - 1}
                value={at}
                aria-label="Step of the histogram"
                aria-valuetext={stepName}
                onInput={(event) => {
                  const place = Number(event.currentTarget.value);
                  chosen.value = place === steps.length - 1 ? null : (steps[place] ?? null);
                }}
              />
            </label>
          </>
        )
      }
      {...(data && {
        table: {
          heads: ["from", "to", "better", "worse"],
          rows: () =>
            data.positive.map((better, i) => [figure(data.edges[i]), figure(data.edges[i + 1]), count(better), count(data.negative[i])]),
        },
      })}
    >
      {data && <Bars data={data} onPoint={(place) => (pointed.value = place)} />}
    </ChartFrame>
  );
}

function Bars({ data, onPoint }: { data: Ratios; onPoint: (place: number | null) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(data);
  latest.current = data;
  const plot = useChart(box, (inside) => new uPlot(optionsOf(inside, latest, onPoint), columnsOf(data), inside));
  useEffect(() => plot.current?.setData(columnsOf(data)), [data]);
  return <div ref={box} class="plot histogram" role="img" aria-label={`Histogram of the ratios in step ${stepNumber(data.step)}; the table below has its data`} />;
}

function optionsOf(box: HTMLElement, latest: { current: Ratios }, onPoint: (place: number | null) => void): uPlot.Options {
  const bars = uPlot.paths.bars!({ size: [0.92, Infinity], radius: 0.12 });
  const layer = (property: string): uPlot.Series => ({
    paths: bars,
    width: 0,
    points: { show: false },
    fill: () => colour(property, 0.85),
    stroke: () => colour(property),
  });
  return {
    width: Math.max(200, box.clientWidth),
    height: box.clientHeight,
    series: [{}, layer(WORSE), layer(BETTER)], // the whole first, its lower part over it
    axes: axes((marks) => marks.map(count), axisFigures),
    scales: {
      x: { time: false, range: () => [latest.current.edges[0]!, latest.current.edges.at(-1)!] },
      y: { range: (_, __, high) => [0, (high ?? 1) * 1.06 || 1] },
    },
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
    hooks: {
      setCursor: [(made) => onPoint(made.cursor.idx ?? null)],
      draw: [(made) => drawBounds(made, boundsOf(latest.current))],
    },
  };
}

function columnsOf({ edges, positive, negative }: Ratios): uPlot.AlignedData {
  const centres = positive.map((_, i) => (edges[i]! + edges[i + 1]!) / 2);
  return [centres, positive.map((better, i) => better + negative[i]!), positive];
}

/** The ratios between which nothing is clipped. The server tells them as ratios, or as distances from 1. */
function boundsOf({ clip_low: low, clip_high: high }: Ratios): number[] {
  const bounds: number[] = [];
  if (low !== null) bounds.push(1 - low);
  if (high !== null) bounds.push(1 + high);
  return bounds;
}

function drawBounds(made: uPlot, bounds: number[]): void {
  const { ctx, bbox } = made;
  const unit = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("--mark");
  ctx.lineWidth = 1.5 * unit;
  ctx.setLineDash([4 * unit, 4 * unit]);
  ctx.font = `${11 * unit}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textBaseline = "top";
  bounds.forEach((bound, i) => {
    const x = made.valToPos(bound, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.textAlign = i === 0 ? "right" : "left";
    ctx.fillText(`clip ${figure(bound)}`, x + (i === 0 ? -5 : 5) * unit, bbox.top + 2 * unit);
  });
  ctx.restore();
}

function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
