/** Tool calls by server and tool. */
import { useState } from "preact/hooks";
import { count, duration, percent } from "../logic/format";
import { visible } from "../logic/visible";
import type { Figure, ServerRow } from "../types";

export function ToolTable({ servers }: { servers: ServerRow[] | null }) {
  return (
    <div class="chart wide">
      <div class="chart-head"><h3>Servers</h3></div>
      {!servers || servers.length === 0 ? (
        <p class="absent">No calls recorded yet. They appear after the first step.</p>
      ) : (
        <div class="table-scroll" tabIndex={0} role="region" aria-label="Servers and their tools">
          <table class="tools">
            <thead>
              <tr>
                <th scope="col">Server</th>
                <th scope="col" class="number">Calls</th>
                <th scope="col">Errors</th>
                <th scope="col">From cache</th>
                <th scope="col" class="number">p50</th>
                <th scope="col" class="number">p95</th>
                <th scope="col" class="number">Restarts</th>
                <th scope="col">Budget used</th>
              </tr>
            </thead>
            {servers.map((server) => <ServerRows key={server.server} server={server} />)}
          </table>
        </div>
      )}
    </div>
  );
}

function ServerRows({ server }: { server: ServerRow }) {
  const [open, setOpen] = useState(false);
  const { budget } = server;
  return (
    <tbody>
      <tr>
        <th scope="row">
          <button type="button" class="disclose" aria-expanded={open} onClick={() => setOpen(!open)}>{visible(server.server)}</button>
        </th>
        <td class="number">{count(server.calls)}</td>
        <td><Share value={server.error_rate} tone="bad" /></td>
        <td><Share value={server.cache_rate} tone="info" /></td>
        <td class="number">{duration(server.p50_s)}</td>
        <td class="number">{duration(server.p95_s)}</td>
        <td class="number">{count(server.restarts)}</td>
        <td>{budget ? <Budget {...budget} /> : <span class="muted">no limit</span>}</td>
      </tr>
      {open &&
        server.tools.map((tool) => (
          <tr key={tool.tool} class="tool-row">
            <th scope="row">{visible(tool.tool)}</th>
            <td class="number">{count(tool.calls)}</td>
            <td><Share value={tool.error_rate ?? null} tone="bad" /></td>
            <td><Share value={tool.cache_rate ?? null} tone="info" /></td>
            <td class="number">{duration(tool.p50_s)}</td>
            <td class="number">{duration(tool.p95_s)}</td>
            <td />
            <td />
          </tr>
        ))}
    </tbody>
  );
}

function Share({ value, tone }: { value: Figure; tone: string }) {
  return (
    <span class="share">
      <span class="figures">{percent(value)}</span>
      <i class={`share-bar ${tone}`}><i style={{ width: `${100 * Math.min(1, value ?? 0)}%` }} /></i>
    </span>
  );
}

function Budget({ unit, used, limit }: NonNullable<ServerRow["budget"]>) {
  const say = (amount: number) => (unit === "usd" ? `$${amount.toFixed(2)}` : count(amount));
  return (
    <span class="share">
      <span class="figures">{say(used)} of {say(limit)}{unit === "calls" ? " calls" : ""}</span>
      <i class={`share-bar ${used / limit > 0.9 ? "bad" : "good"}`}><i style={{ width: `${100 * Math.min(1, used / limit)}%` }} /></i>
    </span>
  );
}
