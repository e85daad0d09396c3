/** The frame of a chart: its name, what it means, its figures in words, and its data as a table. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export interface ReadoutItem {
  label: string;
  colour: string;
  value: string;
}

export interface Table {
  heads: string[];
  rows: () => string[][];
}

interface Props {
  title: string;
  about: string;
  /** Why there is nothing to draw; null if there is. */
  absent: string | null;
  readout?: ReadoutItem[];
  moment?: string | null;
  marks?: string[];
  table?: Table;
  wide?: boolean;
  tools?: ComponentChildren;
  children: ComponentChildren;
}

export function ChartFrame({ title, about, absent, readout = [], moment, marks = [], table, wide, tools, children }: Props) {
  return (
    <figure class={wide ? "chart wide" : "chart"}>
      <figcaption>
        <div class="chart-head">
          <h3 title={about}>{title}</h3>
          {moment && <span class="moment">{moment}</span>}
          {tools && <div class="chart-tools">{tools}</div>}
        </div>
        {absent === null && (readout.length > 0 || marks.length > 0) && (
          <div class="readout">
            {readout.map((item) => (
              <span key={item.label} class="readout-item">
                <i class="swatch" style={{ background: `var(${item.colour})` }} />
                {item.label} <b>{item.value}</b>
              </span>
            ))}
            {marks.map((mark) => (
              <span key={mark} class="readout-item mark">
                <i class="dash" />
                {mark}
              </span>
            ))}
          </div>
        )}
      </figcaption>
      {absent === null ? children : <p class="absent">{absent}</p>}
      {absent === null && table && <DataTable title={title} about={about} table={table} />}
    </figure>
  );
}

const MOST_ROWS = 200;

function DataTable({ title, about, table }: { title: string; about: string; table: Table }) {
  const [open, setOpen] = useState(false);
  const rows = open ? table.rows() : [];
  return (
    <details class="data" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Data<span class="visually-hidden"> of {title}</span>
      </summary>
      {open && (
        <>
          <p class="about">{about}</p>
          <div class="data-scroll" tabIndex={0} role="region" aria-label={`Data of ${title}`}>
            <table>
              <thead>
                <tr>{table.heads.map((head) => <th key={head} scope="col">{head}</th>)}</tr>
              </thead>
              <tbody>
                {rows.slice(-MOST_ROWS).reverse().map((row, i) => (
                  <tr key={i}>{row.map((cell, j) => <td key={j}>{cell}</td>)}</tr>
                ))}
              </tbody>
            </table>
          </div>
          {rows.length > MOST_ROWS && <p class="about">The last {MOST_ROWS} of {rows.length} rows; the run's files contain all rows.</p>}
        </>
      )}
    </details>
  );
}
