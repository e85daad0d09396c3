/** All episodes of a run: filter, search, sort. All of it is in the address, so a view can be shared. */
import { useEffect, useRef, useState } from "preact/hooks";
import { query, runUrl, useAnswer } from "../api";
import { count, duration, exact, several, signed, stepNumber, words } from "../logic/format";
import { visible } from "../logic/visible";
import { OutcomeBadge } from "../parts/badges";
import { EpisodeFilters } from "../parts/episode_filters";
import { KeyHelp, useKeys, type Key } from "../parts/keys";
import { Problem, Shell } from "../parts/shell";
import { paths } from "../logic/routes";
import { go, Link, place, setQuery } from "../router";
import type { EpisodePage, EpisodeRow, Facets } from "../types";

const PAGE = 50;
const ASK_AGAIN_MS = 1000;
export const FILTERS = ["q", "task", "tool", "stop", "outcome", "fault", "step_from", "step_to", "reward_min", "reward_max"] as const;
const COLUMNS = [
  ["step", "Step", ""],
  ["task_id", "Task", ""],
  [null, "Outcome", ""],
  ["reward", "Reward", "number"],
  ["turns", "Turns", "number hide-phone"],
  [null, "Calls", "number hide-tablet"],
  ["tokens", "Tokens", "number hide-tablet"],
  ["duration_s", "Took", "number hide-tablet"],
] as const;

export function EpisodesPage({ id }: { id: string }) {
  const asked = place.value.query;
  const parameters = Object.fromEntries(FILTERS.map((name) => [name, name === "step_from" || name === "step_to" ? serverStep(asked.get(name)) : asked.get(name)]));
  const offset = Number(asked.get("offset") ?? 0) || 0;
  const url = runUrl(id, `/episodes?${query({ ...parameters, sort: asked.get("sort"), order: asked.get("order"), offset, limit: PAGE })}`);
  const [asks, setAsks] = useState(0);
  const { data, error, loading } = useAnswer<EpisodePage>(url, asks);
  const { data: facets } = useAnswer<Facets>(runUrl(id, "/facets"), asks);
  useEffect(() => {
    if (!data?.pending && !facets?.pending) return;
    const again = setTimeout(() => setAsks((before) => before + 1), ASK_AGAIN_MS);
    return () => clearTimeout(again);
  }, [data, facets]);
  const [row, setRow] = useState(0);
  const search = useRef<HTMLInputElement>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const rows = data?.rows ?? [];
  useEffect(() => setRow(0), [url]);
  const open = (episode: EpisodeRow | undefined) => episode && go(paths.episode(id, episode.step, episode.task_id, episode.member));
  const move = (by: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, row + by));
    setRow(next);
    body.current?.rows[next]?.scrollIntoView({ block: "nearest" });
    body.current?.rows[next]?.querySelector("a")?.focus({ preventScroll: true });
  };
  const keys: Key[] = [
    { keys: ["j"], does: "next episode", act: () => move(1) },
    { keys: ["k"], does: "previous episode", act: () => move(-1) },
    { keys: ["Enter"], does: "open the episode", act: (event) => isOnControl(event) || open(rows[row]) },
    { keys: ["/"], does: "search", act: (event) => (event.preventDefault(), search.current?.focus(), search.current?.select()) },
    { keys: ["Escape"], does: "clear all filters, or leave the search field", whileTyping: true, act: () => leaveOrClear(search.current) },
    { keys: ["n"], does: "next page", act: () => offset + PAGE < (data?.total ?? 0) && turnTo(offset + PAGE) },
    { keys: ["p"], does: "previous page", act: () => offset > 0 && turnTo(offset - PAGE) },
  ];
  const help = useKeys(keys);
  return (
    <Shell crumbs={[{ label: "Runs", to: "/" }, { label: id, to: paths.run(id) }, { label: "Episodes" }]} title={`Episodes of ${id}`}>
      <div class="page-head">
        <h1>{visible(id)}</h1>
        <nav class="tabs" aria-label="Views of this run">
          <Link to={paths.run(id)}>Overview</Link>
          <Link to={paths.episodes(id)} aria-current="page">Episodes</Link>
        </nav>
        <span class="spacer" />
        <span class="muted hide-phone">Press <kbd>?</kbd> for keys</span>
      </div>
      <EpisodeFilters facets={facets} search={search} />
      <p class="result-line" role="status" data-loading={loading} data-total={data?.total ?? ""}>
        {data ? `${exact(data.total)}${isFiltered() && facets ? ` of ${exact(facets.episodes)}` : ""} episodes` : "Reading…"}
        {data && <span class="muted"> in {data.took_ms < 1 ? "under 1" : Math.round(data.took_ms)} ms</span>}
        {data?.pending ? <span class="muted"> · {several(data.pending, "episode")} still being read</span> : null}
      </p>
      {data?.problems?.map((problem) => <p key={problem} class="notice" role="status">{visible(problem)}</p>)}
      {error && <Problem error={error} />}
      {data && rows.length === 0 && (
        <div class="problem"><h2>No matching episodes</h2><p><button type="button" onClick={clear}>Clear all filters</button></p></div>
      )}
      {rows.length > 0 && (
        <div class={loading ? "table-box stale" : "table-box"}>
          <table class="episodes">
            <Heads />
            <tbody ref={body}>
              {rows.map((episode, i) => (
                <Row key={`${episode.step} ${episode.task_id} ${episode.member}`} id={id} episode={episode} chosen={i === row} choose={() => setRow(i)} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {data && data.total > PAGE && <Pages offset={offset} total={data.total} />}
      <KeyHelp keys={keys} {...help} />
    </Shell>
  );
}

function Heads() {
  const asked = place.value.query;
  const sort = asked.get("sort") ?? "step";
  const order = asked.get("order") ?? "desc";
  return (
    <thead>
      <tr>
        {COLUMNS.map(([name, label, kind]) => (
          <th key={label} scope="col" class={kind} aria-sort={name !== null && name === sort ? (order === "asc" ? "ascending" : "descending") : undefined}>
            {name === null ? label : (
              <button type="button" class="sort" onClick={() => setQuery({ sort: name, order: name === sort && order === "desc" ? "asc" : "desc", offset: null })}>
                {label}<span aria-hidden="true">{name === sort ? (order === "asc" ? " ↑" : " ↓") : ""}</span>
              </button>
            )}
          </th>
        ))}
        <th scope="col" class="hide-phone">Preview</th>
      </tr>
    </thead>
  );
}

function Row({ id, episode, chosen, choose }: { id: string; episode: EpisodeRow; chosen: boolean; choose: () => void }) {
  const to = paths.episode(id, episode.step, episode.task_id, episode.member);
  return (
    <tr class={chosen ? "chosen" : ""} onClick={(event) => event.target instanceof HTMLAnchorElement || go(to)} onMouseEnter={choose}>
      <td class="figures">{stepNumber(episode.step)}{episode.live && <span class="badge info">live</span>}</td>
      <td class="task-cell"><Link to={to} onFocus={choose}>{visible(episode.task_id)}</Link> <span class="muted">#{episode.member}</span></td>
      <td>
        <OutcomeBadge solved={episode.solved} />
        {episode.stop !== "answered" && <span class="muted small hide-phone"> {words(episode.stop)}</span>}
      </td>
      <td class={`number figures ${episode.solved ? "up" : (episode.reward ?? 0) < 0 ? "down" : ""}`}>{signed(episode.reward)}</td>
      <td class="number figures hide-phone">{count(episode.turns)}</td>
      <td class="number figures hide-tablet">{count(episode.calls)}{(episode.faults ?? 0) > 0 && <span class="down" title={several(episode.faults ?? 0, "fault")}> {episode.faults}✗</span>}</td>
      <td class="number figures hide-tablet">{count(episode.tokens)}</td>
      <td class="number figures hide-tablet">{duration(episode.duration_s)}</td>
      <td class="preview hide-phone"><span>{visible(episode.preview ?? "")}</span></td>
    </tr>
  );
}

function Pages({ offset, total }: { offset: number; total: number }) {
  return (
    <nav class="pages" aria-label="Pages">
      <button type="button" disabled={offset === 0} onClick={() => turnTo(offset - PAGE)}>← Previous</button>
      <span class="figures">{exact(offset + 1)}–{exact(Math.min(total, offset + PAGE))} of {exact(total)}</span>
      <button type="button" disabled={offset + PAGE >= total} onClick={() => turnTo(offset + PAGE)}>Next →</button>
    </nav>
  );
}

/** A step in the address, counted from 1, as the server counts it. Anything else is left for the server to refuse. */
function serverStep(asked: string | null): string | null {
  return asked && /^\d+$/.test(asked) ? String(Math.max(0, Number(asked) - 1)) : asked;
}

function turnTo(offset: number): void {
  setQuery({ offset: offset > 0 ? String(offset) : null }, { replace: false });
  scrollTo(0, 0);
}

export function isFiltered(): boolean {
  return FILTERS.some((name) => place.value.query.get(name));
}

export function clear(): void {
  setQuery({ ...Object.fromEntries(FILTERS.map((name) => [name, null])), offset: null });
}

function leaveOrClear(search: HTMLInputElement | null): void {
  if (document.querySelector("dialog[open]")) return;
  if (document.activeElement === search && !search?.value) search?.blur();
  else clear();
}

function isOnControl(event: KeyboardEvent): boolean {
  return event.target instanceof HTMLElement && event.target.closest("a, button, summary, dialog") !== null;
}
