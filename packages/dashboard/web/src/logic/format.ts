/** Figures and times for readers: short, of even width, and never "NaN". */

const NOTHING = "–";

/** Three significant digits, in the notation that is shortest to read: 0.0123, 12.3, 4.1e-6, 1.2M. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (Number.isInteger(value) && size < 1e4) return exact(value).replace(/^-/, "−");
  if (size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  if (size >= 1e4) return count(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return minus(value.toFixed(digits));
}

/** A whole number, abbreviated from ten thousand on: 9,999, 12.3k, 4.56M. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) {
    if (size >= unit && size >= 1e4) return minus((value / unit).toFixed(size / unit >= 100 ? 0 : 1)) + letter;
  }
  return minus(Math.round(value).toLocaleString("en-GB"));
}

/** Every digit: 16,000. */
export function exact(value: number): string {
  return value.toLocaleString("en-GB");
}

/** The last part of a path: a model's name, whatever its folder. */
export function baseName(path: string): string {
  return path.replace(/\/+$/, "").split("/").at(-1) ?? path;
}

/** Marks of an axis, all with as many decimals as their distance needs. */
export function axisFigures(marks: number[]): string[] {
  const distance = marks.length > 1 ? Math.abs(marks[1]! - marks[0]!) : Math.abs(marks[0] ?? 1);
  const largest = Math.max(...marks.map(Math.abs));
  if (distance === 0 || largest >= 1e4) return marks.map(count);
  if (largest < 1e-3) return marks.map(figure);
  const decimals = Math.max(0, Math.min(6, Math.ceil(-Math.log10(distance) - 1e-9) + (needsHalf(distance) ? 1 : 0)));
  return marks.map((mark) => minus(mark.toFixed(decimals)));
}

/** Whether a distance such as 2.5 or 0.25 needs one more decimal. */
function needsHalf(distance: number): boolean {
  const leading = distance / 10 ** Math.floor(Math.log10(distance) + 1e-9);
  return Math.abs(leading - Math.round(leading)) > 1e-6;
}

/** A share between 0 and 1 as a percentage. */
export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const hundredths = value * 100;
  const size = Math.abs(hundredths);
  // 99.99% must not read as 100%.
  const decimals = size === 0 || size === 100 ? 0 : size > 99 && size < 100 ? 2 : size >= 10 ? 0 : size >= 1 ? 1 : 2;
  return minus(hundredths.toFixed(decimals)) + "%";
}

/** A reward always shows its sign: +0.550. */
export function signed(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return (value > 0 ? "+" : "") + minus(value.toFixed(digits));
}

/** How long something took: 3 ms, 1.24 s, 2m 05s, 3h 12m. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${pad(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

/** How long ago a moment was, both in seconds since 1970. */
export function ago(moment: number | null, now: number): string {
  if (moment === null) return NOTHING;
  const seconds = Math.max(0, now - moment);
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)}s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ago`;
  return `${Math.floor(seconds / 86400)}d ago`;
}

/** A step as readers count it, from 1 as in the command line. The files of a run and the server count from 0. */
export function stepNumber(step: number): number {
  return step + 1;
}

/** A number of things, in words: 1 step, 2 steps. */
export function several(amount: number, noun: string, plural = `${noun}s`): string {
  return `${count(amount)} ${amount === 1 ? noun : plural}`;
}

/** A name from the files as a reader wants it: cut_by_length, "cut by length". */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

function minus(text: string): string {
  return text.replace(/^-/, "−");
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}
