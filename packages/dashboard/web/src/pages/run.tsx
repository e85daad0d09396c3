/** One run, live: its headline figures, every chart, its tools and its health. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { runUrl, useAnswer } from "../api";
import { SECTIONS, type Section } from "../charts/catalog";
import { Gantt } from "../charts/gantt";
import { RatioHistogram } from "../charts/histogram";
import { OtherMetrics, SectionCharts } from "../charts/section";
import { VerdictTimeline } from "../charts/verdicts";
import { useEvents } from "../live";
import { mergeSpans, mergeSteps, mergeVerdicts } from "../logic/series";
import { visible } from "../logic/visible";
import { StateBadge } from "../parts/badges";
import { Headline } from "../parts/headline";
import { Problem, Shell } from "../parts/shell";
import { Smoothing, smoothing } from "../parts/smoothing";
import { ToolTable } from "../parts/tool_table";
import { paths } from "../logic/routes";
import { Link } from "../router";
import type { Run, ServerRow, Span, StepMetrics, Verdict } from "../types";

export interface LiveEpisodes {
  step: number;
  finished: number;
  of: number | null;
}

export function RunPage({ id }: { id: string }) {
  const { data: run, error } = useAnswer<Run>(runUrl(id));
  const record = useRecord(id);
  const steps = record.steps.value;
  const state = record.state.value ?? run?.state ?? "";
  const why = record.state.value === null ? run?.why : record.why.value;
  const done = Math.max(record.done.value, run?.step ?? 0);
  return (
    <Shell crumbs={[{ label: "Runs", to: "/" }, { label: id }]} title={id} live>
      <div class="page-head">
        <h1>{visible(id)}</h1>
        {state && <StateBadge state={state} />}
        <nav class="tabs" aria-label="Views of this run">
          <Link to={paths.run(id)} aria-current="page">Overview</Link>
          <Link to={paths.episodes(id)}>Episodes</Link>
        </nav>
        <span class="spacer" />
        <Smoothing />
      </div>
      {error && <Problem error={error} />}
      {why && <p class="notice" role="status">{visible(why)}</p>}
      {run && (
        <>
          <Headline run={run} done={done} state={state} steps={steps} verdicts={record.verdicts.value} live={record.episodes.value} updated={record.updated.value ?? run.updated} />
          <nav class="section-nav" aria-label="Sections">
            {["Health", ...SECTIONS, "Other", "Settings"].map((name) => <a key={name} href={`#${name.toLowerCase()}`}>{name}</a>)}
          </nav>
          <section id="health" aria-labelledby="health-title">
            <h2 id="health-title">Health</h2>
            <VerdictTimeline verdicts={record.verdicts.value} steps={done} />
          </section>
          {SECTIONS.map((section) => (
            <section key={section} id={section.toLowerCase()} aria-labelledby={`${section}-title`}>
              <h2 id={`${section}-title`}>{section}</h2>
              <div class="charts">
                <SectionCharts section={section} runs={[steps]} bounds={run.bounds} smoothing={smoothing.value} reading={record.reading} />
                <Extras section={section} id={id} record={record} />
              </div>
            </section>
          ))}
          <section id="other" aria-labelledby="other-title">
            <h2 id="other-title">Other</h2>
            <div class="charts"><OtherMetrics steps={steps} smoothing={smoothing.value} /></div>
          </section>
          <Settings run={run} />
        </>
      )}
    </Shell>
  );
}

function Extras({ section, id, record }: { section: Section; id: string; record: ReturnType<typeof useRecord> }) {
  if (section === "Update") return <RatioHistogram run={id} newest={record.steps.value.at(-1)?.step ?? -1} />;
  if (section === "Pipeline") return <Gantt spans={record.spans.value} />;
  if (section === "Tools") return <ToolTable servers={record.servers.value} />;
  return null;
}

function Settings({ run }: { run: Run }) {
  return (
    <section id="settings" aria-labelledby="settings-title">
      <h2 id="settings-title">Settings</h2>
      <details class="card">
        <summary>Effective config.yaml</summary>
        <pre class="yaml" tabIndex={0} aria-label="Settings of the run">{visible(run.config_yaml)}</pre>
      </details>
      <p class="muted">The run's folder: <code>{visible(run.directory)}</code></p>
    </section>
  );
}

/** Everything about a run, requested once and then kept up to date by the server's events. */
function useRecord(id: string) {
  const steps = useSignal<StepMetrics[]>([]);
  const verdicts = useSignal<Verdict[]>([]);
  const spans = useSignal<Span[]>([]);
  const servers = useSignal<ServerRow[] | null>(null);
  const episodes = useSignal<LiveEpisodes | null>(null);
  const state = useSignal<string | null>(null);
  const why = useSignal<string | null>(null);
  const done = useSignal(0);
  const hello = useSignal(0);
  const updated = useSignal<number | null>(null);
  // After a lost connection everything is requested again, and merged with what is already here.
  const metrics = useAnswer<{ steps: StepMetrics[] }>(runUrl(id, "/metrics"), hello.value);
  const health = useAnswer<{ verdicts: Verdict[] }>(runUrl(id, "/health"), hello.value);
  const timeline = useAnswer<{ spans: Span[] }>(runUrl(id, "/timeline"), hello.value);
  const tools = useAnswer<{ servers: ServerRow[] }>(runUrl(id, "/tools"), hello.value);
  const learn = (arrived: StepMetrics[]) => {
    steps.value = mergeSteps(steps.value, arrived);
    done.value = Math.max(done.value, (steps.value.at(-1)?.step ?? -1) + 1);
  };
  useEffect(() => metrics.data?.steps && learn(metrics.data.steps), [metrics.data]);
  useEffect(() => {
    if (health.data) verdicts.value = mergeVerdicts(verdicts.value, health.data.verdicts);
  }, [health.data]);
  useEffect(() => {
    if (timeline.data) spans.value = mergeSpans(spans.value, timeline.data.spans);
  }, [timeline.data]);
  useEffect(() => {
    if (tools.data) servers.value = tools.data.servers;
  }, [tools.data]);
  useEvents(runUrl(id, "/events"), {
    hello: (event: { state: string; why: string | null }) => {
      [state.value, why.value] = [event.state, event.why];
      hello.value += 1;
    },
    metrics: (event: { steps: StepMetrics[] }) => {
      learn(event.steps);
      updated.value = Date.now() / 1000;
    },
    health: (event: { verdicts: Verdict[] }) => (verdicts.value = mergeVerdicts(verdicts.value, event.verdicts)),
    timeline: (event: { spans: Span[] }) => (spans.value = mergeSpans(spans.value, event.spans)),
    tools: (event: { servers: ServerRow[] }) => (servers.value = event.servers),
    episodes: (event: { live: LiveEpisodes | null }) => (episodes.value = event.live),
    // The files were cut, as when a run is resumed from an earlier step.
    reset: () => {
      [steps.value, verdicts.value, spans.value, done.value] = [[], [], [], 0];
      hello.value += 1;
    },
    state: (event: { state: string; why: string | null }) => ([state.value, why.value] = [event.state, event.why]),
  });
  return { steps, verdicts, spans, servers, episodes, state, why, done, updated, reading: metrics.loading && steps.value.length === 0 };
}
