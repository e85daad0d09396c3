/** Small marks that say a state in a word and a colour, never in a colour alone. */
import { words } from "../logic/format";
import type { Severity } from "../types";

const STATE_TONES: Record<string, string> = {
  running: "info",
  finished: "good",
  stopped: "warn",
  interrupted: "warn",
  failed: "bad",
  unreadable: "bad",
};

export function StateBadge({ state }: { state: string }) {
  return (
    <span class={`badge ${STATE_TONES[state] ?? "plain"}`}>
      <i class={state === "running" ? "dot pulse" : "dot"} />
      {words(state)}
    </span>
  );
}

export function SeverityBadge({ severity }: { severity: Severity }) {
  const tone = { ok: "good", warn: "warn", bad: "bad" }[severity];
  return <span class={`badge ${tone}`}>{{ ok: "✓ ok", warn: "! warn", bad: "✗ bad" }[severity]}</span>;
}

export function OutcomeBadge({ solved }: { solved: boolean }) {
  return <span class={`badge ${solved ? "good" : "plain"}`}>{solved ? "✓ solved" : "failed"}</span>;
}
