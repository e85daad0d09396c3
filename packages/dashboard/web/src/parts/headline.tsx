/** The figures that show at a glance how a run is doing. */
import { now } from "../live";
import { ago, count, duration, figure, percent, signed, stepNumber } from "../logic/format";
import type { LiveEpisodes } from "../pages/run";
import type { Figure, Run, StepMetrics, Verdict } from "../types";
import { SeverityBadge } from "./badges";

interface Props {
  run: Run;
  done: number;
  state: string;
  steps: StepMetrics[];
  verdicts: Verdict[];
  live: LiveEpisodes | null;
  updated: number | null;
}

const RECENT = 10;
const GRAVITY = { bad: 0, warn: 1, ok: 2 };

export function Headline({ run, done, state, steps, verdicts, live, updated }: Props) {
  const last = steps.at(-1);
  const stepTime = mean(steps.slice(-RECENT).map((line) => line["step_s"] ?? null));
  const left = stepTime === null ? null : stepTime * Math.max(0, run.steps - done);
  const worst = verdicts.filter((verdict) => verdict.step === last?.step).sort((a, b) => GRAVITY[a.severity] - GRAVITY[b.severity])[0];
  const running = state === "running";
  return (
    <div class="headline" role="group" aria-label="Headline figures">
      <div class="stat">
        <span class="stat-name">Steps</span>
        <b data-figure="steps">{count(done)}<span class="muted"> of {count(run.steps)}</span></b>
        <progress max={run.steps || 1} value={done} aria-label={`${done} of ${run.steps} steps`} />
        <span class="stat-note">
          {running && live ? `step ${stepNumber(live.step)}: ${live.finished}${live.of === null ? "" : ` of ${live.of}`} episodes` : `updated ${ago(updated, now.value)}`}
        </span>
      </div>
      <Stat name="Reward" value={signed(last?.["reward"])} note={change(steps, "reward", (d) => signed(d))} figureName="reward" />
      <Stat name="Success" value={percent(last?.["success_rate"])} note={change(steps, "success_rate", points)} figureName="success" />
      <Stat name="Valid calls" value={percent(last?.["valid_call_rate"])} note={change(steps, "valid_call_rate", points)} />
      <Stat name="KL" value={figure(last?.["kl"])} note={typeof run.bounds.kl_cap === "number" ? `cap ${figure(run.bounds.kl_cap)}` : "nats per token"} />
      <Stat name="Learnable" value={percent(last?.["learnable_share"])} note="of sampled tokens" />
      <Stat name="Step time" value={duration(stepTime)} note={running && left !== null ? `about ${duration(left)} left` : `mean of the last ${Math.min(RECENT, steps.length)}`} />
      <div class="stat">
        <span class="stat-name">Health</span>
        <b>{worst ? <SeverityBadge severity={worst.severity} /> : "–"}</b>
        <span class="stat-note">{worst ? worst.name : "no verdict yet"}</span>
      </div>
    </div>
  );
}

function Stat({ name, value, note, figureName }: { name: string; value: string; note: string; figureName?: string }) {
  return (
    <div class="stat">
      <span class="stat-name">{name}</span>
      <b data-figure={figureName}>{value}</b>
      <span class="stat-note">{note}</span>
    </div>
  );
}

/** The difference between the last ten steps and the first ten. */
function change(steps: StepMetrics[], name: string, say: (difference: number) => string): string {
  if (steps.length < 2 * RECENT) return "last step";
  const first = mean(steps.slice(0, RECENT).map((line) => line[name] ?? null));
  const recent = mean(steps.slice(-RECENT).map((line) => line[name] ?? null));
  return first === null || recent === null ? "last step" : `${say(recent - first)} since start`;
}

function points(difference: number): string {
  return `${signed(difference * 100, 0)} points`;
}

function mean(values: Figure[]): number | null {
  const known = values.filter((value): value is number => value !== null);
  return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0) / known.length;
}
