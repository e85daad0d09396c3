/** One place of two conversations: text that only one side has is marked there. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import type { DiffRow as Row } from "../logic/conversation_diff";
import type { Change } from "../logic/diff";
import { percent } from "../logic/format";
import { Plain } from "./text";

const FOLD_CHARACTERS = 2500;

export function DiffRow({ row }: { row: Row }) {
  const [open, setOpen] = useState(false);
  const note = row.same ? "same" : !row.before ? "only after" : !row.after ? "only before" : `${percent(row.likeness)} similar`;
  const isLong = row.changes.reduce((sum, change) => sum + change.text.length, 0) > FOLD_CHARACTERS;
  const changes = isLong && !open ? cut(row.changes) : row.changes;
  return (
    <div class={`diff-row of-${row.kind}${row.same ? " same" : ""}`}>
      <h3>
        {row.place} <span class="muted">{note}</span>
      </h3>
      <div class="diff-sides">
        <pre aria-label={`${row.place}, before`}>{row.before ? <Words changes={changes} side="removed" /> : <span class="muted">–</span>}</pre>
        <pre aria-label={`${row.place}, after`}>{row.after ? <Words changes={changes} side="added" /> : <span class="muted">–</span>}</pre>
      </div>
      {isLong && (
        <button type="button" class="more" onClick={() => setOpen(!open)}>
          {open ? "Fold" : "Show all"}<span class="visually-hidden"> of {row.place}</span>
        </button>
      )}
    </div>
  );
}

function Words({ changes, side }: { changes: Change[]; side: "added" | "removed" }) {
  return (
    <>
      {changes.map((change, i) => {
        if (change.kind === "same") return <Plain key={i} text={change.text} />;
        if (change.kind !== side) return null;
        // White space after a word is not marked: it would look like another word.
        const said = change.text.trimEnd();
        const space = change.text.slice(said.length);
        const marked = <Plain text={said} />;
        return <Fragment key={i}>{side === "added" ? <ins>{marked}</ins> : <del>{marked}</del>}{space}</Fragment>;
      })}
    </>
  );
}

function cut(changes: Change[]): Change[] {
  const kept: Change[] = [];
  let left = FOLD_CHARACTERS;
  for (const change of changes) {
    if (left <= 0) break;
    kept.push({ ...change, text: change.text.slice(0, left) });
    left -= change.text.length;
  }
  return kept;
}
