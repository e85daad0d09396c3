/** The filters over a run's episodes. Typed text is applied after a short pause, choices at once. */
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { count, stepNumber, words } from "../logic/format";
import { visible } from "../logic/visible";
import { clear, isFiltered } from "../pages/episodes";
import { place, setQuery } from "../router";
import type { Facets } from "../types";

const REST_MS = 150;

export function EpisodeFilters({ facets, search }: { facets: Facets | null; search: RefObject<HTMLInputElement | null> }) {
  const asked = place.value.query;
  const set = (name: string, value: string) => setQuery({ [name]: value || null, offset: null });
  const outcome = asked.get("outcome") ?? "";
  return (
    <search class="filters">
      <Typed name="q" label="Search all text" type="search" placeholder="Search turns, arguments and results" box={search} wide />
      <Typed name="task" label="Task" list={facets?.tasks.slice(0, 2000).map((task) => task.id) ?? []} placeholder="any" />
      <Choice name="tool" label="Tool" options={facets?.tools ?? []} />
      <Choice name="stop" label="Ended" options={facets?.stops ?? []} />
      <fieldset class="segments">
        <legend>Outcome</legend>
        {[["", "all"], ["solved", "solved"], ["failed", "failed"]].map(([value, label]) => (
          <label key={value}>
            <input type="radio" name="outcome" value={value} checked={outcome === value} onChange={() => set("outcome", value!)} />
            <span>{label}</span>
          </label>
        ))}
      </fieldset>
      <div class="pair" role="group" aria-label="Steps">
        <Typed name="step_from" label="Step from" type="number" placeholder={stepOf(facets?.steps[0])} />
        <Typed name="step_to" label="to" type="number" placeholder={stepOf(facets?.steps[1])} />
      </div>
      <div class="pair" role="group" aria-label="Reward">
        <Typed name="reward_min" label="Reward from" type="number" placeholder="any" />
        <Typed name="reward_max" label="to" type="number" placeholder="any" />
      </div>
      <label class="check-label">
        <input type="checkbox" checked={asked.get("fault") === "1"} onChange={(event) => set("fault", event.currentTarget.checked ? "1" : "")} />
        With a fault
      </label>
      <button type="button" disabled={!isFiltered()} onClick={clear}>Clear</button>
    </search>
  );
}

function stepOf(step: number | undefined): string {
  return step === undefined ? "" : String(stepNumber(step));
}

interface TypedProps {
  name: string;
  label: string;
  type?: "text" | "search" | "number";
  placeholder?: string;
  list?: string[];
  box?: RefObject<HTMLInputElement | null>;
  wide?: boolean;
}

function Typed({ name, label, type = "text", placeholder = "", list, box, wide }: TypedProps) {
  const inAddress = place.value.query.get(name) ?? "";
  const [text, setText] = useState(inAddress);
  const rest = useRef(0);
  useEffect(() => setText(inAddress), [inAddress]);
  const onInput = (value: string) => {
    setText(value);
    clearTimeout(rest.current);
    rest.current = window.setTimeout(() => setQuery({ [name]: value || null, offset: null }), REST_MS);
  };
  return (
    <label class={wide ? "field wide-field" : "field"}>
      <span>{label}</span>
      <input
        ref={box ?? null}
        type={type}
        step="any"
        value={text}
        placeholder={placeholder}
        autocomplete="off"
        spellcheck={false}
        list={list ? `${name}-list` : undefined}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      {list && <datalist id={`${name}-list`}>{list.map((value) => <option key={value} value={value} />)}</datalist>}
    </label>
  );
}

function Choice({ name, label, options }: { name: string; label: string; options: { name: string; count: number }[] }) {
  return (
    <label class="field">
      <span>{label}</span>
      <select value={place.value.query.get(name) ?? ""} onChange={(event) => setQuery({ [name]: event.currentTarget.value || null, offset: null })}>
        <option value="">any</option>
        {options.map((option) => (
          <option key={option.name} value={option.name}>{visible(words(option.name))} ({count(option.count)})</option>
        ))}
      </select>
    </label>
  );
}
