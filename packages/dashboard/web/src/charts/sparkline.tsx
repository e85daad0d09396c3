/** A line of a few values, without axes: for a table of runs. */
import type { Figure } from "../types";

const WIDTH = 120;
const HEIGHT = 28;

interface Props {
  values: Figure[];
  colour: string;
  label: string;
  range?: [number, number];
}

export function Sparkline({ values, colour, label, range }: Props) {
  const known = values.filter((value): value is number => value !== null);
  if (known.length === 0) return <span class="muted">–</span>;
  const low = range?.[0] ?? Math.min(...known);
  const high = range?.[1] ?? Math.max(...known);
  const x = (i: number) => 2 + (i * (WIDTH - 4)) / Math.max(1, values.length - 1);
  const y = (value: number) => (high > low ? HEIGHT - 3 - ((value - low) / (high - low)) * (HEIGHT - 6) : HEIGHT / 2);
  const points = values.flatMap((value, i) => (value === null ? [] : [`${x(i).toFixed(1)},${y(value).toFixed(1)}`]));
  const [endX, endY] = points.at(-1)!.split(",");
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} role="img" aria-label={label}>
      <polygon points={`${x(0)},${HEIGHT} ${points.join(" ")} ${endX},${HEIGHT}`} fill={`var(${colour})`} opacity="0.1" />
      <polyline points={points.join(" ")} fill="none" stroke={`var(${colour})`} stroke-width="1.5" stroke-linejoin="round" />
      <circle cx={endX} cy={endY} r="2.2" fill={`var(${colour})`} />
    </svg>
  );
}
