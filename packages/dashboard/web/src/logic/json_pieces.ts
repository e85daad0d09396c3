/** Printed JSON cut into pieces by what they are, so that they can be coloured. */

export interface JsonPiece {
  kind: "key" | "string" | "number" | "word" | "mark";
  text: string;
}

const PIECE = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

export function jsonPieces(text: string): JsonPiece[] {
  const pieces: JsonPiece[] = [];
  let from = 0;
  const push = (kind: JsonPiece["kind"], part: string) => part && pieces.push({ kind, text: part });
  for (const found of text.matchAll(PIECE)) {
    push("mark", text.slice(from, found.index));
    const [whole, quoted, colon, number] = found;
    if (quoted !== undefined) {
      push(colon === undefined ? "string" : "key", quoted);
      push("mark", colon ?? "");
    } else push(number === undefined ? "word" : "number", whole);
    from = found.index + whole.length;
  }
  push("mark", text.slice(from));
  return pieces;
}

/** A value as indented JSON; text that is JSON is indented too, other text is returned unchanged. */
export function prettyJson(value: unknown): { text: string; json: boolean } {
  if (typeof value !== "string") return { text: JSON.stringify(value, null, 2) ?? "", json: true };
  const start = value.trimStart()[0];
  if ((start === "{" || start === "[") && value.length < 200_000) {
    try {
      return { text: JSON.stringify(JSON.parse(value), null, 2), json: true };
    } catch {
      // It only looks like JSON.
    }
  }
  return { text: value, json: false };
}
