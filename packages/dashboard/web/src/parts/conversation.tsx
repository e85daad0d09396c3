/** An episode as a conversation: what the policy wrote, the calls it made, what came back. */
import { duration, several, signed, words } from "../logic/format";
import { prettyJson } from "../logic/json_pieces";
import { visible } from "../logic/visible";
import type { Call, Episode, Figure, Observation, Turn } from "../types";
import { OutcomeBadge } from "./badges";
import { Folded, Plain } from "./text";

/** Parts of the reward that count mistakes, each of which lowers it. */
const PENALTIES = ["invalid_call", "unanswered"];

export function EpisodeFacts({ episode, advantage }: { episode: Episode; advantage: Figure }) {
  const parts = Object.entries(episode.reward_parts).map(([name, value]): [string, Figure] => [name, value && PENALTIES.includes(name) ? -value : value]);
  return (
    <header class="facts">
      <div class="facts-line">
        <h2>#{episode.member}</h2>
        <OutcomeBadge solved={episode.solved} />
        <b class={episode.solved ? "reward up" : (episode.reward ?? 0) < 0 ? "reward down" : "reward"}>{signed(episode.reward)}</b>
        {advantage !== null && <span class="muted" title="advantage relative to the group">A {signed(advantage, 2)}</span>}
      </div>
      <p class="muted small">
        {[
          words(episode.stop),
          several(episode.turns.length, "turn"),
          `${episode.sampled_tokens} of ${episode.tokens} tokens sampled`,
          duration(episode.duration_s),
          ...(episode.temperature === null ? [] : [`temperature ${episode.temperature}`]),
          ...(episode.attempt > 0 ? [`attempt ${episode.attempt + 1}`] : []),
        ].join(" · ")}
      </p>
      {parts.length > 0 && (
        <dl class="parts">
          {parts.map(([name, value]) => (
            <div key={name}>
              <dt>{visible(words(name))}</dt>
              <dd>
                <i class="part-bar"><i class={(value ?? 0) < 0 ? "down" : ""} style={{ width: `${100 * Math.min(1, Math.abs(value ?? 0))}%` }} /></i>
                <span class={(value ?? 0) < 0 ? "figures down" : "figures"}>{signed(value, 2)}</span>
              </dd>
            </div>
          ))}
        </dl>
      )}
    </header>
  );
}

export function Conversation({ episode }: { episode: Episode }) {
  return (
    <ol class="turns">
      {episode.turns.map((turn, i) => <TurnView key={i} turn={turn} number={i + 1} />)}
    </ol>
  );
}

function TurnView({ turn, number }: { turn: Turn; number: number }) {
  const pairs = Math.max(turn.calls.length, turn.observations.length);
  return (
    <li class="turn">
      <div class="message policy">
        <span class="who">
          turn {number}
          <span class="muted">
            weights v{turn.weights_version}
            {turn.finish !== "stop" ? ` · cut: ${visible(turn.finish)}` : ""}
            {turn.reward ? ` · reward ${signed(turn.reward, 2)}` : ""}
          </span>
        </span>
        {turn.problem && <p class="call-problem"><Plain text={turn.problem} /></p>}
        {turn.text.trim() ? <Folded text={turn.text.trim()} label={`turn ${number}`} /> : <p class="muted small">(nothing written)</p>}
      </div>
      {Array.from({ length: pairs }, (_, i) => <CallView key={i} call={turn.calls[i]} seen={turn.observations[i]} />)}
    </li>
  );
}

export function CallView({ call, seen }: { call: Call | undefined; seen: Observation | undefined }) {
  const name = call?.name ?? seen?.tool ?? "";
  const given = prettyJson(call?.arguments ?? {});
  const result = prettyJson(seen?.text ?? "");
  const got = seen?.arguments !== null && seen?.arguments !== undefined ? prettyJson(seen.arguments) : null;
  return (
    <div class={seen && !seen.worked ? "call failed" : "call"}>
      <div class="call-head">
        <code class="call-name"><Plain text={name} /></code>
        {seen && <CallFacts seen={seen} />}
      </div>
      {call && given.text !== "{}" && <Folded text={given.text} json={given.json} label={`arguments of ${name}`} />}
      {call?.problem && <p class="call-problem"><Plain text={call.problem} /></p>}
      {got && got.text !== given.text && (
        <details>
          <summary>The tool received different arguments</summary>
          <Folded text={got.text} json={got.json} label={`arguments received by ${name}`} />
        </details>
      )}
      {seen && (
        <div class="result">
          <Folded text={result.text} json={result.json} label={`result of ${name}`} />
        </div>
      )}
    </div>
  );
}

function CallFacts({ seen }: { seen: Observation }) {
  return (
    <span class="call-facts">
      {seen.fault && <span class="badge bad">✗ {visible(words(seen.fault))} fault</span>}
      {!seen.fault && !seen.worked && <span class="badge warn">! injected failure</span>}
      {seen.source !== "live" && <span class="badge plain">{visible(seen.source)}</span>}
      {seen.attempts > 1 && <span class="badge warn">{seen.attempts} attempts</span>}
      {seen.truncated && <span class="badge plain">cut short</span>}
      <span class="muted">{visible(seen.server ?? "mcprl")}</span>
      <span class="figures">{duration(seen.latency_s)}</span>
    </span>
  );
}
