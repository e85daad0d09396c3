/** Text of models and tools, split at characters that would hide or reorder what the reader sees. */

export interface Piece {
  text: string;
  /** Set if the piece replaces one invisible character: its code point, such as U+202E. */
  hidden?: string;
}

// Control characters other than tab and newline; marks that change direction; characters without width; tags, which
// can carry a whole message unseen; and halves of surrogate pairs.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udfff]/gu;

/** The text in order, with each hidden character as a separate piece, written as its code point. */
export function visiblePieces(text: string): Piece[] {
  const pieces: Piece[] = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) pieces.push({ text: text.slice(from, found.index) });
    const code = codePoint(found[0]);
    pieces.push({ text: code, hidden: code });
    from = found.index + found[0].length;
  }
  if (from < text.length || pieces.length === 0) pieces.push({ text: text.slice(from) });
  return pieces;
}

/** The same as one string, for places that take only text: titles, options, labels. */
export function visible(text: string): string {
  return visiblePieces(text)
    .map((piece) => (piece.hidden ? `⟨${piece.text}⟩` : piece.text))
    .join("");
}

function codePoint(character: string): string {
  return "U+" + (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
}
