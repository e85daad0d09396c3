/** Word-by-word differences between two texts, by Myers' greedy algorithm. */

export interface Change {
  kind: "same" | "added" | "removed";
  text: string;
}

// The greedy algorithm takes time and memory with the square of the number of differences. Beyond this many, the rest
// is shown as replaced: a reader gains nothing from the few words that two such texts have in common.
const MOST_DIFFERENCES = 600;

/** Words with the white space behind them, so that joining them gives the text back. */
export function splitWords(text: string): string[] {
  return text.match(/\s+|[\p{L}\p{N}_]+\s*|[^\p{L}\p{N}_\s]\s*/gu) ?? [];
}

export function diffWords(before: string, after: string): Change[] {
  const old = splitWords(before);
  const now = splitWords(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail++;
  const middle = compare(old.slice(head, old.length - tail), now.slice(head, now.length - tail));
  return merged([
    ...old.slice(0, head).map(same),
    ...middle,
    ...old.slice(old.length - tail).map(same),
  ]);
}

/** How alike two texts are: the share of the words of both that the two have in common, from 0 to 1. */
export function likeness(changes: Change[]): number {
  let shared = 0;
  let all = 0;
  for (const { kind, text } of changes) {
    const words = splitWords(text).length * (kind === "same" ? 2 : 1);
    all += words;
    if (kind === "same") shared += words;
  }
  return all === 0 ? 1 : shared / all;
}

function compare(old: string[], now: string[]): Change[] {
  const most = Math.min(old.length + now.length, MOST_DIFFERENCES);
  // furthest[k] is how far into `old` a path with `k` more removals than additions gets; a copy for each round is what
  // the path is found from.
  let furthest = new Map<number, number>([[1, 0]]);
  const rounds: Map<number, number>[] = [];
  for (let differences = 0; differences <= most; differences++) {
    rounds.push(new Map(furthest));
    for (let k = -differences; k <= differences; k += 2) {
      let x = goesDown(furthest, k, differences) ? furthest.get(k + 1)! : furthest.get(k - 1)! + 1;
      while (x < old.length && x - k < now.length && old[x] === now[x - k]) x++;
      furthest.set(k, x);
      if (x >= old.length && x - k >= now.length) return pathThrough(rounds, old, now);
    }
    furthest = new Map([...furthest].filter(([k]) => Math.abs(k) <= differences + 1));
  }
  return [...old.map(removed), ...now.map(added)];
}

function pathThrough(rounds: Map<number, number>[], old: string[], now: string[]): Change[] {
  const backwards: Change[] = [];
  let x = old.length;
  let y = now.length;
  for (let differences = rounds.length - 1; differences >= 0; differences--) {
    const furthest = rounds[differences]!;
    const k = x - y;
    const before = goesDown(furthest, k, differences) ? k + 1 : k - 1;
    const fromX = furthest.get(before)!;
    const fromY = fromX - before;
    while (x > fromX && y > fromY && x > 0 && y > 0) backwards.push(same(old[--x]!, --y));
    if (differences > 0) backwards.push(x === fromX ? added(now[--y]!) : removed(old[--x]!));
  }
  return backwards.reverse();
}

/** Whether the path arrives on diagonal k by an addition. */
function goesDown(furthest: Map<number, number>, k: number, differences: number): boolean {
  return k === -differences || (k !== differences && furthest.get(k - 1)! < furthest.get(k + 1)!);
}

function merged(changes: Change[]): Change[] {
  const all: Change[] = [];
  for (const change of changes) {
    const last = all.at(-1);
    if (last && last.kind === change.kind) last.text += change.text;
    else all.push({ ...change });
  }
  return all;
}

function same(text: string, _place?: number): Change {
  return { kind: "same", text };
}

function added(text: string): Change {
  return { kind: "added", text };
}

function removed(text: string): Change {
  return { kind: "removed", text };
}
