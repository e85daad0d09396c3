/** Text of models and tools, as text: hidden characters are shown, long texts are folded, nothing is ever markup. */
import { useState } from "preact/hooks";
import { count } from "../logic/format";
import { jsonPieces } from "../logic/json_pieces";
import { visiblePieces } from "../logic/visible";

const FIRST_CHARACTERS = 3000;
const FIRST_LINES = 40;
const MORE_CHARACTERS = 60000;

export function Plain({ text }: { text: string }) {
  return (
    <>
      {visiblePieces(text).map((piece, i) =>
        piece.hidden ? <span key={i} class="hidden-character" title="an invisible character">{piece.text}</span> : piece.text,
      )}
    </>
  );
}

/** A text that shows its beginning, and more on request; never more at once than a browser lays out easily. */
export function Folded({ text, json = false, label }: { text: string; json?: boolean; label: string }) {
  const whole = text.length;
  const first = Math.min(whole, firstLines(text));
  const [shown, setShown] = useState(first);
  const part = text.slice(0, Math.max(shown, first));
  const rest = whole - part.length;
  return (
    <div class="folded">
      <pre>{json ? <Json text={part} /> : <Plain text={part} />}</pre>
      {rest > 0 && (
        <button type="button" class="more" onClick={() => setShown(part.length + MORE_CHARACTERS)}>
          Show {rest > MORE_CHARACTERS ? `${count(MORE_CHARACTERS)} of ${count(rest)}` : count(rest)} more characters
          <span class="visually-hidden"> of {label}</span>
        </button>
      )}
      {part.length > first && (
        <button type="button" class="more" onClick={() => setShown(first)}>
          Fold<span class="visually-hidden"> {label}</span>
        </button>
      )}
    </div>
  );
}

function Json({ text }: { text: string }) {
  return (
    <>
      {jsonPieces(text).map((piece, i) =>
        piece.kind === "mark" ? <Plain key={i} text={piece.text} /> : <span key={i} class={`json-${piece.kind}`}><Plain text={piece.text} /></span>,
      )}
    </>
  );
}

function firstLines(text: string): number {
  let end = -1;
  for (let line = 0; line < FIRST_LINES; line++) {
    end = text.indexOf("\n", end + 1);
    if (end < 0 || end > FIRST_CHARACTERS) return FIRST_CHARACTERS;
  }
  return end;
}
