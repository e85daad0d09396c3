/** The trajectory viewer: a group side by side, one episode alone, or one episode token by token. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ask, asError, query, runUrl, useAnswer, type ApiError } from "../api";
import { useNearby } from "../charts/uplot_parts";
import { several, signed, stepNumber, words } from "../logic/format";
import { prettyJson } from "../logic/json_pieces";
import { visible } from "../logic/visible";
import { CallView, Conversation, EpisodeFacts } from "../parts/conversation";
import { KeyHelp, useKeys, type Key } from "../parts/keys";
import { Problem, Shell } from "../parts/shell";
import { Folded, Plain } from "../parts/text";
import { TokenView } from "../parts/token_view";
import { paths } from "../logic/routes";
import { go, Link, place, setQuery } from "../router";
import type { EpisodeAnswer, Member, Message, Neighbour, Task } from "../types";

interface Props {
  id: string;
  step: number;
  task: string;
  member: number;
}

type View = "group" | "one" | "tokens";
const VIEWS: [View, string][] = [["group", "Group"], ["one", "Episode"], ["tokens", "Tokens"]];

const episodeUrl = (id: string, step: number, task: string, member: number) => runUrl(id, `/episode?${query({ step, task, member })}`);

export function EpisodePage({ id, step, task, member }: Props) {
  const { data, error } = useAnswer<EpisodeAnswer>(episodeUrl(id, step, task, member));
  const asked = place.value.query.get("view");
  const view: View = asked === "one" || asked === "tokens" ? asked : "group";
  const kept = location.search;
  const group = data?.group ?? [];
  const at = group.findIndex((one) => one.member === member);
  const toMember = (other: number | undefined) => other !== undefined && go(paths.episode(id, step, task, other) + kept, { replace: true });
  const toStep = (other: Neighbour | null | undefined) => other && go(paths.episode(id, other.step, task, other.member) + kept);
  const keys: Key[] = [
    { keys: ["h", "ArrowLeft"], does: "previous episode of the group", act: () => toMember(group[at - 1]?.member) },
    { keys: ["l", "ArrowRight"], does: "next episode of the group", act: () => toMember(group[at + 1]?.member) },
    { keys: ["["], does: "same task, previous step", act: () => toStep(data?.neighbours.previous) },
    { keys: ["]"], does: "same task, next step", act: () => toStep(data?.neighbours.next) },
    { keys: ["g"], does: "group side by side", act: () => setQuery({ view: null }) },
    { keys: ["o"], does: "only this episode", act: () => setQuery({ view: "one" }) },
    { keys: ["t"], does: "token by token", act: () => setQuery({ view: "tokens" }) },
    { keys: ["u"], does: "back to the episodes", act: () => go(paths.episodes(id)) },
  ];
  const help = useKeys(keys);
  return (
    <Shell
      crumbs={[{ label: "Runs", to: "/" }, { label: id, to: paths.run(id) }, { label: "Episodes", to: paths.episodes(id) }, { label: `${task} #${member}` }]}
      title={`${task} #${member}, step ${stepNumber(step)}`}
    >
      <div class="page-head viewer-head">
        <h1>{visible(task)}</h1>
        <StepSwitch step={step} neighbours={data?.neighbours} toStep={toStep} />
        <span class="spacer" />
        <fieldset class="segments">
          <legend class="visually-hidden">View</legend>
          {VIEWS.map(([value, label]) => (
            <label key={value}>
              <input type="radio" name="view" value={value} checked={view === value} onChange={() => setQuery({ view: value === "group" ? null : value })} />
              <span>{label}</span>
            </label>
          ))}
        </fieldset>
        <Link class="button" to={paths.task(id, task, query({ a: stepNumber(data?.neighbours.previous?.step ?? step), b: stepNumber(step) }))}>Compare steps</Link>
        <CopyLink />
      </div>
      {error && <Problem error={error} />}
      {data && (
        <>
          <TaskCard task={data.task} missing={data.task_missing ?? null} />
          <GroupStrip group={data.group} member={member} toMember={toMember} />
          {view === "group" && <GroupColumns id={id} step={step} task={task} member={member} group={data.group} known={data} />}
          {view === "one" && (
            <article class="episode-alone" aria-label={`Episode ${member}`}>
              <EpisodeFacts episode={data.episode} advantage={data.group[at]?.advantage ?? null} />
              <Conversation episode={data.episode} />
            </article>
          )}
          {view === "tokens" && <TokenView url={runUrl(id, `/tokens?${query({ step, task, member })}`)} />}
        </>
      )}
      <KeyHelp keys={keys} {...help} />
    </Shell>
  );
}

function StepSwitch({ step, neighbours, toStep }: { step: number; neighbours: EpisodeAnswer["neighbours"] | undefined; toStep: (other: Neighbour | null) => void }) {
  const { previous = null, next = null } = neighbours ?? {};
  return (
    <div class="step-switch" role="group" aria-label="Steps of this task">
      <button type="button" disabled={previous === null} onClick={() => toStep(previous)} aria-label={previous === null ? "No earlier step" : `Step ${stepNumber(previous.step)}`}>←</button>
      <span class="figures">step {stepNumber(step)}</span>
      <button type="button" disabled={next === null} onClick={() => toStep(next)} aria-label={next === null ? "No later step" : `Step ${stepNumber(next.step)}`}>→</button>
    </div>
  );
}

function CopyLink() {
  const said = useSignal("Copy link");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      said.value = "Copied";
    } catch {
      said.value = "Copy the link from the address bar"; // a browser that does not allow it
    }
    setTimeout(() => (said.value = "Copy link"), 2000);
  };
  return <button type="button" onClick={copy} aria-live="polite">{said.value}</button>;
}

function TaskCard({ task, missing }: { task: Task | null; missing: string | null }) {
  if (!task) return <p class="absent">{visible(missing ?? "The task is no longer in the run's task files, so its prompt is unknown.")}</p>;
  const goal = prettyJson(task.goal);
  return (
    <section class="card task-card" aria-label="Task">
      {task.prompt.map((message, i) => <PromptMessage key={i} message={message} />)}
      {task.preamble.length > 0 && (
        <details>
          <summary>Preamble, {several(task.preamble.length, "message")} before every task</summary>
          {task.preamble.map((message, i) => <PromptMessage key={i} message={message} />)}
        </details>
      )}
      <details>
        <summary>Goal, {task.difficulty}, {task.tools ? several(task.tools.length, "tool") : "all tools"}</summary>
        {task.tools && <p class="tool-list">{task.tools.map((tool) => <code key={tool}><Plain text={tool} /></code>)}</p>}
        <Folded text={goal.text} json={goal.json} label="the goal" />
      </details>
    </section>
  );
}

function PromptMessage({ message }: { message: Message }) {
  return (
    <div class={`message ${message.role === "user" ? "user" : "other"}`}>
      <span class="who">{visible(message.role)}</span>
      {message.content && <Folded text={message.content} label={`the ${message.role}'s message`} />}
      {message.tool_calls?.map((call, i) => <CallView key={i} call={{ ...(call.function ?? call), problem: null }} seen={undefined} />)}
    </div>
  );
}

function GroupStrip({ group, member, toMember }: { group: Member[]; member: number; toMember: (member: number) => void }) {
  return (
    <nav class="group-strip" aria-label="Episodes of the group">
      {group.map((one) => (
        <button
          key={one.member}
          type="button"
          class={one.member === member ? "member chosen" : "member"}
          aria-current={one.member === member ? "true" : undefined}
          onClick={() => toMember(one.member)}
        >
          <span class="muted">#{one.member}</span> <b class={one.solved ? "up" : (one.reward ?? 0) < 0 ? "down" : ""}>{signed(one.reward, 2)}</b>
          <span class="member-note">{one.solved ? "✓ solved" : words(one.stop)}</span>
        </button>
      ))}
    </nav>
  );
}

interface ColumnsProps extends Props {
  group: Member[];
  known: EpisodeAnswer;
}

function GroupColumns({ id, step, task, member, group, known }: ColumnsProps) {
  const columns = useRef<HTMLDivElement>(null);
  const synced = useSignal(false);
  useEffect(() => {
    const column = columns.current?.querySelector<HTMLElement>(".column.chosen");
    if (column && columns.current) columns.current.scrollTo({ left: column.offsetLeft - columns.current.offsetLeft - 24 });
  }, [member]);
  const onScroll = (event: Event) => {
    if (!synced.value || !(event.target instanceof HTMLElement) || !event.target.matches(".column-body")) return;
    for (const other of columns.current!.querySelectorAll<HTMLElement>(".column-body")) {
      if (other !== event.target) other.scrollTop = event.target.scrollTop;
    }
  };
  return (
    <>
      <label class="check-label sync-label hide-phone">
        <input type="checkbox" checked={synced.value} onChange={(event) => (synced.value = event.currentTarget.checked)} />
        Scroll together
      </label>
      <div class="columns" ref={columns} onScrollCapture={onScroll}>
        {group.map((one) => (
          <Column key={one.member} url={episodeUrl(id, step, task, one.member)} one={one} chosen={one.member === member} known={known.episode.member === one.member && known.episode.step === step ? known : null} />
        ))}
      </div>
    </>
  );
}

function Column({ url, one, chosen, known }: { url: string; one: Member; chosen: boolean; known: EpisodeAnswer | null }) {
  const answer = useSignal<EpisodeAnswer | null>(known);
  const error = useSignal<ApiError | null>(null);
  const box = useRef<HTMLElement>(null);
  const near = useNearby(box); // a group may have a hundred members
  useEffect(() => {
    if (known || !near) {
      answer.value = known ?? answer.value;
      return;
    }
    const stop = new AbortController();
    ask<EpisodeAnswer>(url, stop.signal).then(
      (data) => (answer.value = data),
      (failed: unknown) => !stop.signal.aborted && (error.value = asError(failed)),
    );
    return () => stop.abort();
  }, [url, near]);
  return (
    <article ref={box} class={chosen ? "column chosen" : "column"} aria-label={`Episode ${one.member}`}>
      {error.value && <Problem error={error.value} />}
      {answer.value && <EpisodeFacts episode={answer.value.episode} advantage={one.advantage} />}
      <div class="column-body" tabIndex={0} role="region" aria-label={`Conversation of episode ${one.member}`}>
        {answer.value ? <Conversation episode={answer.value.episode} /> : <p class="absent">{near ? "Reading…" : "Loads when visible."}</p>}
      </div>
    </article>
  );
}
