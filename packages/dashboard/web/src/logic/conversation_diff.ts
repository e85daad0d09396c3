/** Two conversations beside each other: what was said, called and answered in the same places. */
import type { Episode } from "../types";
import { diffWords, likeness, type Change } from "./diff";
import { prettyJson } from "./json_pieces";

export interface DiffRow {
  /** The place in the conversation: "turn 2", "call 1 of turn 2", "its result". */
  place: string;
  kind: "policy" | "call" | "result";
  changes: Change[];
  /** Whether each side has anything in this place. */
  before: boolean;
  after: boolean;
  same: boolean;
  likeness: number;
}

// Beyond this, words are not compared: a megabyte of a tool's result has more of them than anyone would read.
const MOST_CHARACTERS = 40_000;

export function conversationRows(before: Episode, after: Episode): DiffRow[] {
  const [old, now] = [piecesOf(before), piecesOf(after)];
  const places = [...new Map([...old, ...now].map((piece) => [piece.key, piece])).values()].sort((a, b) => a.order - b.order);
  return places.map(({ key, place, kind }) => {
    const one = old.find((piece) => piece.key === key)?.text;
    const other = now.find((piece) => piece.key === key)?.text;
    const changes = diffWords((one ?? "").slice(0, MOST_CHARACTERS), (other ?? "").slice(0, MOST_CHARACTERS));
    return { place, kind, changes, before: one !== undefined, after: other !== undefined, same: one === other, likeness: likeness(changes) };
  });
}

interface Piece {
  key: string;
  order: number;
  place: string;
  kind: DiffRow["kind"];
  text: string;
}

function piecesOf(episode: Episode): Piece[] {
  return episode.turns.flatMap((turn, t): Piece[] => [
    { key: `${t}`, order: t * 1e6, place: `Turn ${t + 1}`, kind: "policy", text: turn.text.trim() },
    ...turn.calls.map((call, c): Piece => ({
      key: `${t} call ${c}`,
      order: t * 1e6 + 2 * c + 1,
      place: `Call ${c + 1} of turn ${t + 1}`,
      kind: "call",
      text: `${call.name} ${prettyJson(call.arguments).text}`,
    })),
    ...turn.observations.map((seen, c): Piece => ({
      key: `${t} result ${c}`,
      order: t * 1e6 + 2 * c + 2,
      place: `Result of call ${c + 1}`,
      kind: "result",
      text: prettyJson(seen.text).text,
    })),
  ]);
}
