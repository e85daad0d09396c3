/** An episode token by token, coloured by what the reader asks: role, advantage, ratio, logprob, weights version. */
import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useAnswer } from "../api";
import { figure, signed, several } from "../logic/format";
import { hasLens, reach, roleOf, shade, type Lens } from "../logic/token_colours";
import { visible } from "../logic/visible";
import { place, setQuery } from "../router";
import type { Tokens } from "../types";
import { Problem } from "./shell";

const LENSES: [Lens, string][] = [
  ["role", "Role"],
  ["advantage", "Advantage"],
  ["ratio", "Ratio"],
  ["logprob", "Logprob"],
  ["version", "Weights version"],
];
const AT_FIRST = 4000;

export function TokenView({ url }: { url: string }) {
  const { data, error } = useAnswer<Tokens>(url);
  const asked = place.value.query.get("lens");
  const lens = LENSES.find(([name]) => name === asked)?.[0] ?? "role";
  const pointed = useSignal<number | null>(null);
  const shown = useSignal(AT_FIRST);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // By hand: redrawing thousands of tokens for each one pointed at would be slow.
    const token = box.current?.querySelector(`[data-i="${pointed.value}"]`);
    token?.classList.add("pointed");
    return () => token?.classList.remove("pointed");
  }, [pointed.value]);
  if (error) return <Problem error={error} />;
  if (!data) return <p class="absent">Reading…</p>;
  const hear = (event: Event) => {
    const index = event.target instanceof HTMLElement ? event.target.dataset["i"] : undefined;
    if (index !== undefined) pointed.value = Number(index);
  };
  const move = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    pointed.value = Math.max(0, Math.min(data.text.length - 1, (pointed.value ?? -1) + by));
  };
  return (
    <section class="card tokens-card" aria-label="Tokens">
      <div class="token-tools">
        <fieldset class="segments">
          <legend>Colour by</legend>
          {LENSES.map(([name, label]) => (
            <label key={name}>
              <input type="radio" name="lens" value={name} checked={lens === name} disabled={!hasLens(data, name)} onChange={() => setQuery({ lens: name === "role" ? null : name })} />
              <span>{label}</span>
            </label>
          ))}
        </fieldset>
        <Legend data={data} lens={lens} />
      </div>
      <TokenFigures data={data} i={pointed.value} />
      <div
        ref={box}
        class="tokens"
        tabIndex={0}
        role="group"
        aria-label={`${several(data.text.length, "token")}. Arrow keys move from token to token.`}
        onMouseOver={hear}
        onClick={hear}
        onKeyDown={move}
      >
        <TokenSpans data={data} lens={lens} end={shown.value} />
      </div>
      {data.text.length > shown.value && (
        <button type="button" class="more" onClick={() => (shown.value += AT_FIRST)}>Show more of {several(data.text.length, "token")}</button>
      )}
    </section>
  );
}

function TokenSpans({ data, lens, end }: { data: Tokens; lens: Lens; end: number }) {
  const spans = useMemo(() => {
    const largest = reach(data, lens);
    return data.text.slice(0, end).map((text, i) => {
      const found = shade(data, i, lens, largest);
      const background = found ? `color-mix(in oklab, var(${found.hue}) ${Math.round(8 + 37 * found.strength)}%, transparent)` : "transparent";
      const breaks = text.endsWith("\n");
      return (
        <Fragment key={i}>
          <span class={lens === "role" ? `token role-${roleOf(data, i)}` : "token"} data-i={i} style={{ background }}>
            {shownToken(text)}
          </span>
          {breaks && <br />}
        </Fragment>
      );
    });
  }, [data, lens, end]);
  return <>{spans}</>;
}

/** A token with white space made visible if it would be lost. */
function shownToken(text: string): string {
  return visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

function TokenFigures({ data, i }: { data: Tokens; i: number | null }) {
  if (i === null) return <p class="token-figures muted" role="status">Hover over a token, or use the arrow keys, to see its values.</p>;
  const facts: [string, string][] = [
    ["token", `${i} ${JSON.stringify(visible(data.text[i] ?? ""))}`],
    ["role", roleOf(data, i) + (data.learnable ? (data.learnable[i] ? ", learnable" : ", no loss") : "")],
    ["turn", data.turn_index[i]! >= 0 ? String(data.turn_index[i]! + 1) : "–"],
    ["logprob", data.sampled[i] ? figure(data.logprobs[i]) : "–"],
    ["advantage", data.advantages && data.sampled[i] ? signed(data.advantages[i], 3) : "–"],
    ["ratio", data.ratios?.[i] ? figure(data.ratios[i]) : "–"],
    ["weights", data.weights_version[i]! >= 0 ? `v${data.weights_version[i]}` : "–"],
  ];
  return (
    <dl class="token-figures" aria-live="polite">
      {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

function Legend({ data, lens }: { data: Tokens; lens: Lens }) {
  const most = reach(data, lens);
  const entries: [string, string][] = {
    role: (["sampled", "forced", "fixed", "context"] as const).map((role): [string, string] => [
      `--role-${role}`,
      `${role} ${data.text.filter((_, i) => roleOf(data, i) === role).length}`,
    ]),
    advantage: [["--scale-down", `worse, to ${signed(-most, 2)}`], ["--scale-up", `better, to ${signed(most, 2)}`]] as [string, string][],
    ratio: [["--scale-down", `less likely, to ${figure(Math.exp(-most))}`], ["--scale-up", `more likely, to ${figure(Math.exp(most))}`]] as [string, string][],
    logprob: [["--scale-surprise", `surprising, to ${figure(-most)}`]] as [string, string][],
    version: [...new Set(data.weights_version)].filter((v) => v >= 0).map((v): [string, string] => [`--series-${v % 8}`, `v${v}`]),
  }[lens];
  return (
    <ul class="legend" aria-label="Legend">
      {entries.map(([hue, label]) => (
        <li key={label}><i class="swatch" style={{ background: `var(${hue})` }} />{label}</li>
      ))}
    </ul>
  );
}
