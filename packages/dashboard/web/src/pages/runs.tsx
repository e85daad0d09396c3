/** All runs of an outputs folder: the progress of each, and which to compare. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useAnswer } from "../api";
import { Sparkline } from "../charts/sparkline";
import { now, useEvents } from "../live";
import { ago, baseName, percent, signed } from "../logic/format";
import { visible } from "../logic/visible";
import { SeverityBadge, StateBadge } from "../parts/badges";
import { Problem, Shell } from "../parts/shell";
import { paths } from "../logic/routes";
import { go, Link } from "../router";
import type { RunCard } from "../types";

export function RunsPage() {
  const { data, error } = useAnswer<{ runs: RunCard[] }>("/api/runs");
  const runs = useSignal<RunCard[] | null>(null);
  const chosen = useSignal<Set<string>>(new Set());
  useEffect(() => {
    if (data) runs.value = data.runs;
  }, [data]);
  useEvents("/api/events", { runs: (event: { runs: RunCard[] }) => (runs.value = event.runs) });
  const choose = (id: string, on: boolean) => {
    const next = new Set(chosen.value);
    on ? next.add(id) : next.delete(id);
    chosen.value = next;
  };
  const list = runs.value ?? [];
  const active = list.filter((run) => run.state === "running").length;
  return (
    <Shell crumbs={[{ label: "Runs" }]} title="Runs" live>
      <div class="page-head">
        <h1>Runs</h1>
        {runs.value && <span class="muted">{list.length} in all{active > 0 ? `, ${active} running` : ""}</span>}
        <span class="spacer" />
        <button type="button" class="primary" disabled={chosen.value.size < 2} onClick={() => go(paths.compare([...chosen.value]))}>
          {chosen.value.size < 2 ? "Choose two to compare" : `Compare ${chosen.value.size}`}
        </button>
      </div>
      {error && <Problem error={error} />}
      {runs.value?.length === 0 && (
        <div class="problem"><h2>No runs yet</h2><p>Start one with <code>mcprl train RECIPE</code>: it then appears here.</p></div>
      )}
      {list.length > 0 && (
        <div class="table-box">
          <table class="runs">
            <thead>
              <tr>
                <th scope="col"><span class="visually-hidden">Compare</span></th>
                <th scope="col">Run</th>
                <th scope="col">State</th>
                <th scope="col" class="hide-phone">Step</th>
                <th scope="col">Reward</th>
                <th scope="col" class="hide-tablet">Success</th>
                <th scope="col" class="hide-tablet">Health</th>
                <th scope="col" class="hide-phone number">Updated</th>
              </tr>
            </thead>
            <tbody>
              {list.map((run) => <Row key={run.id} run={run} chosen={chosen.value.has(run.id)} choose={choose} />)}
            </tbody>
          </table>
        </div>
      )}
    </Shell>
  );
}

function Row({ run, chosen, choose }: { run: RunCard; chosen: boolean; choose: (id: string, on: boolean) => void }) {
  const share = run.steps > 0 ? run.step / run.steps : 0;
  return (
    <tr class={chosen ? "chosen" : ""}>
      <td class="check">
        <input type="checkbox" aria-label={`Compare ${visible(run.id)}`} checked={chosen} onChange={(e) => choose(run.id, e.currentTarget.checked)} />
      </td>
      <td class="run-name">
        <Link to={paths.run(run.id)}>{visible(run.id)}</Link>
        <span class="muted">{visible([baseName(run.model), run.engine].filter(Boolean).join(" · "))}</span>
      </td>
      <td>
        <StateBadge state={run.state} />
        {run.why && <span class="muted why" title={visible(run.why)}>{visible(run.why)}</span>}
      </td>
      <td class="hide-phone">
        <div class="progress-cell">
          <span class="figures">{run.step}<span class="muted"> / {run.steps}</span></span>
          <progress max={1} value={share} aria-label={`${run.step} of ${run.steps} steps`} />
        </div>
      </td>
      <td>
        <div class="spark-cell">
          <b class="figures">{signed(run.reward_last)}</b>
          <Sparkline values={run.reward} colour="--series-0" label={`Reward, last ${signed(run.reward_last)}`} />
        </div>
      </td>
      <td class="hide-tablet">
        <div class="spark-cell">
          <b class="figures">{percent(run.success_last)}</b>
          <Sparkline values={run.success} colour="--series-1" range={[0, 1]} label={`Success, last ${percent(run.success_last)}`} />
        </div>
      </td>
      <td class="hide-tablet">
        {run.worst ? (
          <span class="health-cell" title={visible(run.worst.what)}><SeverityBadge severity={run.worst.severity} /> {visible(run.worst.name)}</span>
        ) : <span class="muted">–</span>}
      </td>
      <td class="hide-phone number muted">{ago(run.updated, now.value)}</td>
    </tr>
  );
}
