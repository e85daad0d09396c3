/** Spans of a run as bars on rows, with the gaps between them. Times are seconds since the first span began. */
import type { Span } from "../types";

export interface Bar {
  row: string;
  step: number | null;
  from: number;
  to: number;
}

/** The spans as bars, and on two more rows the times in which the sampler and the learner had nothing to do. */
export function withIdle(spans: Span[]): Bar[] {
  if (spans.length === 0) return [];
  const zero = Math.min(...spans.map((span) => span.start));
  return [
    ...spans.map((span) => ({ row: span.activity, step: span.step, from: span.start - zero, to: span.end - zero })),
    ...gapsOf(spans, ["collect"]).map((gap) => ({ row: "sampler idle", step: null, ...gap })),
    ...gapsOf(spans, ["update", "publish", "save"]).map((gap) => ({ row: "learner idle", step: null, ...gap })),
  ];
}

/** When, between the first and the last span of the run, none of these activities was under way. */
export function gapsOf(spans: Span[], activities: string[]): { from: number; to: number }[] {
  const zero = Math.min(...spans.map((span) => span.start));
  const end = Math.max(...spans.map((span) => span.end)) - zero;
  const gaps: { from: number; to: number }[] = [];
  let reached = 0;
  const busy = spans.filter((span) => activities.includes(span.activity)).sort((a, b) => a.start - b.start);
  for (const span of busy) {
    if (span.start - zero > reached) gaps.push({ from: reached, to: span.start - zero });
    reached = Math.max(reached, span.end - zero);
  }
  if (end > reached) gaps.push({ from: reached, to: end });
  return gaps;
}

export function spanAt(bars: Bar[], row: string, moment: number): Bar | null {
  return bars.find((bar) => bar.row === row && bar.from <= moment && moment <= bar.to) ?? null;
}
