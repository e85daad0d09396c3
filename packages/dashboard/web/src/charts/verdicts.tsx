/** The health of a run: a row for each rule with a verdict, a bar for the steps it covers, and its text. */
import { useState } from "preact/hooks";
import { stepNumber } from "../logic/format";
import { stretches, type Stretch } from "../logic/series";
import { SeverityBadge } from "../parts/badges";
import type { Verdict } from "../types";

const GRAVITY = { bad: 0, warn: 1, ok: 2 };

export function VerdictTimeline({ verdicts, steps }: { verdicts: Verdict[]; steps: number }) {
  const [chosen, setChosen] = useState<Stretch | null>(null);
  if (verdicts.length === 0) return <p class="absent">No verdicts yet. They appear after the first step.</p>;
  const rows = [...stretches(verdicts)].sort(([, one], [, other]) => gravity(one) - gravity(other) || one[0]!.from - other[0]!.from);
  const last = Math.max(steps - 1, ...verdicts.map((verdict) => verdict.step));
  const shown = chosen ?? worstNow(rows);
  return (
    <div class="verdicts">
      <div class="verdict-rows">
        {rows.map(([name, row]) => (
          <div key={name} class="verdict-row">
            <span class="verdict-name" title={name}>{name}</span>
            <div class="verdict-track">
              {row.map((stretch) => (
                <button
                  key={stretch.from}
                  type="button"
                  class={`verdict-bar ${stretch.severity}${shown && shown.name === name && shown.from === stretch.from ? " chosen" : ""}`}
                  style={{ left: `${(100 * stretch.from) / (last + 1)}%`, width: `${(100 * (stretch.to - stretch.from + 1)) / (last + 1)}%` }}
                  aria-label={`${name}, ${stretch.severity}, ${stepsOf(stretch)}`}
                  onMouseEnter={() => setChosen(stretch)}
                  onFocus={() => setChosen(stretch)}
                  onClick={() => setChosen(stretch)}
                />
              ))}
            </div>
          </div>
        ))}
        <div class="verdict-row verdict-axis" aria-hidden="true">
          <span />
          <div>
            <span>step 1</span>
            <span>{stepNumber(last)}</span>
          </div>
        </div>
      </div>
      {shown && (
        <div class={`verdict-words ${shown.severity}`} role="status">
          <p>
            <SeverityBadge severity={shown.severity} /> <b>{shown.name}</b> <span class="muted">{stepsOf(shown)}</span>
          </p>
          <p>{shown.last.what}</p>
          {shown.last.fix && (
            <p>
              <b>Try:</b> {shown.last.fix}
            </p>
          )}
        </div>
      )}
    </div>
  );
}

function gravity(row: Stretch[]): number {
  return Math.min(...row.map((stretch) => GRAVITY[stretch.severity]));
}

function worstNow(rows: [string, Stretch[]][]): Stretch | null {
  const ends = rows.map(([, row]) => row.at(-1)!);
  const newest = Math.max(...ends.map((stretch) => stretch.to));
  return ends.filter((stretch) => stretch.to === newest).sort((a, b) => GRAVITY[a.severity] - GRAVITY[b.severity])[0] ?? null;
}

function stepsOf({ from, to }: Stretch): string {
  return from === to ? `step ${stepNumber(from)}` : `steps ${stepNumber(from)} to ${stepNumber(to)}`;
}
