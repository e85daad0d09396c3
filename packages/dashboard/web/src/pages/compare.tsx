/** Several runs beside each other: every metric with a line for each run, and the settings in which they differ. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ask, asError, runUrl, type ApiError } from "../api";
import { SECTIONS } from "../charts/catalog";
import { SectionCharts } from "../charts/section";
import { useEvents } from "../live";
import { settingDifferences } from "../logic/config_diff";
import { figure, percent, signed } from "../logic/format";
import { mergeSteps } from "../logic/series";
import { visible } from "../logic/visible";
import { StateBadge } from "../parts/badges";
import { Problem, Shell } from "../parts/shell";
import { Smoothing, smoothing } from "../parts/smoothing";
import { paths } from "../logic/routes";
import { Link, place } from "../router";
import type { Run, StepMetrics } from "../types";

interface Compared {
  run: Run;
  steps: StepMetrics[];
}

export function ComparePage() {
  const ids = (place.value.query.get("runs") ?? "").split(",").filter(Boolean);
  const key = ids.join(",");
  const compared = useSignal<Compared[]>([]);
  const error = useSignal<ApiError | null>(null);
  const changed = useSignal(0);
  // One stream for all runs: a browser opens six connections to a server, and a stream per run would use them up.
  useEvents("/api/events", { runs: () => (changed.value += 1) });
  useEffect(() => {
    let current = true;
    const load = async (id: string): Promise<Compared> => {
      const known = compared.value.find((one) => one.run.id === id)?.steps ?? [];
      const since = known.at(-1)?.step;
      const [run, metrics] = await Promise.all([
        ask<Run>(runUrl(id)),
        ask<{ steps: StepMetrics[] }>(runUrl(id, `/metrics${since === undefined ? "" : `?since=${since}`}`)),
      ]);
      return { run, steps: mergeSteps(known, metrics.steps) };
    };
    Promise.all(ids.map(load)).then(
      (loaded) => current && (compared.value = loaded),
      (failed: unknown) => current && (error.value = asError(failed)),
    );
    return () => {
      current = false;
    };
  }, [key, changed.value]);
  const runs = compared.value;
  const names = runs.map(({ run }) => visible(run.id));
  return (
    <Shell crumbs={[{ label: "Runs", to: "/" }, { label: "Compare" }]} title="Compare" live>
      <div class="page-head">
        <h1>Compare {ids.length} runs</h1>
        <span class="spacer" />
        <Smoothing />
      </div>
      {error.value && <Problem error={error.value} />}
      {ids.length === 0 && <div class="problem"><h2>No runs selected</h2><p><Link to="/">Select runs in the list</Link></p></div>}
      {runs.length > 0 && (
        <>
          <Summary runs={runs} />
          <Differences runs={runs} />
          {SECTIONS.map((section) => (
            <section key={section} aria-labelledby={`${section}-title`}>
              <h2 id={`${section}-title`}>{section}</h2>
              <div class="charts">
                <SectionCharts section={section} runs={runs.map((one) => one.steps)} names={names} bounds={{}} smoothing={smoothing.value} />
              </div>
            </section>
          ))}
        </>
      )}
    </Shell>
  );
}

function Summary({ runs }: { runs: Compared[] }) {
  return (
    <div class="table-box">
      <div class="table-scroll" tabIndex={0} role="region" aria-label="The runs">
        <table>
          <thead>
            <tr>
              <th scope="col">Run</th><th scope="col">State</th><th scope="col" class="number">Step</th>
              <th scope="col" class="number">Reward</th><th scope="col" class="number">Success</th><th scope="col" class="number">KL</th>
            </tr>
          </thead>
          <tbody>
            {runs.map(({ run, steps }, i) => {
              const last = steps.at(-1);
              return (
                <tr key={run.id}>
                  <th scope="row"><i class="swatch" style={{ background: `var(--series-${i % 8})` }} /> <Link to={paths.run(run.id)}>{visible(run.id)}</Link></th>
                  <td><StateBadge state={run.state} /></td>
                  <td class="number">{run.step} / {run.steps}</td>
                  <td class="number">{signed(last?.["reward"])}</td>
                  <td class="number">{percent(last?.["success_rate"])}</td>
                  <td class="number">{figure(last?.["kl"])}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Differences({ runs }: { runs: Compared[] }) {
  const rows = settingDifferences(runs.map(({ run }) => run.config));
  return (
    <section aria-labelledby="differences-title">
      <h2 id="differences-title">Different settings</h2>
      {rows.length === 0 ? (
        <p class="absent">All settings are the same.</p>
      ) : (
        <div class="table-box">
          <div class="table-scroll" tabIndex={0} role="region" aria-label="Table of different settings">
            <table class="settings">
              <thead>
                <tr><th scope="col">Setting</th>{runs.map(({ run }) => <th key={run.id} scope="col">{visible(run.id)}</th>)}</tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={row.setting}>
                    <th scope="row"><code>{visible(row.setting)}</code></th>
                    {row.values.map((value, i) => <td key={i}>{value === null ? <span class="muted">–</span> : <code>{visible(value)}</code>}</td>)}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </div>
      )}
    </section>
  );
}
