/** Shared by all charts: axes in the page's colours, the cursor, the size, and when to draw. */
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { colour, theme } from "../theme";

const FONT = '11px ui-sans-serif, system-ui, -apple-system, "Segoe UI", sans-serif';

/** One key for all charts over steps: their cursors and their zooms move together. */
export const CURSOR: uPlot.Cursor = {
  sync: { key: "steps", scales: ["x", null] },
  drag: { x: true, y: false },
  points: { size: 7, width: 1.5 },
  y: false,
};

export function axes(yFormat: (marks: number[]) => string[], xFormat?: (marks: number[]) => string[]): uPlot.Axis[] {
  const shared = {
    font: FONT,
    stroke: () => colour("--muted"),
    ticks: { show: false },
  };
  return [
    {
      ...shared,
      size: 24,
      gap: 4,
      space: 56,
      grid: { show: false },
      border: { show: true, stroke: () => colour("--border"), width: 1 },
      ...(xFormat
        ? { values: (_: uPlot, splits: number[]) => xFormat(splits) }
        : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000] }),
    },
    {
      ...shared,
      size: 46,
      gap: 6,
      space: 30,
      grid: { stroke: () => colour("--grid"), width: 1 },
      values: (_, splits) => yFormat(splits),
    },
  ];
}

/**
 * The chart that lives in a box: made once the box is near the screen, made anew where one of `shape` changes, as large
 * as the box, and drawn again in the colours of another theme. `make` may give null while there is nothing to draw.
 */
export function useChart(
  box: RefObject<HTMLElement | null>,
  make: (box: HTMLElement) => uPlot | null,
  shape: unknown[] = [],
): RefObject<uPlot | null> {
  const plot = useRef<uPlot | null>(null);
  const near = useNearby(box);
  useEffect(() => {
    const made = near && box.current ? make(box.current) : null;
    if (!made) return;
    plot.current = made;
    const unfollow = follow(made, box.current!);
    const unsubscribe = theme.subscribe(() => queueMicrotask(() => made.redraw(false)));
    return () => {
      unfollow();
      unsubscribe();
      made.destroy();
      plot.current = null;
    };
  }, [near, ...shape]);
  return plot;
}

/** Keep a chart as large as its box. Returns a function that stops it. */
function follow(plot: uPlot, box: HTMLElement): () => void {
  const observer = new ResizeObserver(() => {
    if (box.clientWidth > 0) plot.setSize({ width: box.clientWidth, height: box.clientHeight });
  });
  observer.observe(box);
  return () => observer.disconnect();
}

/** Whether a box has been near the screen: charts far below are drawn when someone scrolls to them. */
export function useNearby(box: RefObject<HTMLElement | null>): boolean {
  const [near, setNear] = useState(false);
  useEffect(() => {
    if (near || !box.current) return;
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setNear(true),
      { rootMargin: "400px" },
    );
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [near]);
  return near;
}
