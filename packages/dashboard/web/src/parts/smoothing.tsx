/** How much the lines of charts are smoothed; kept for the next visit. */
import { signal } from "@preact/signals";

const kept = Number(localStorage.getItem("mcprl-smoothing") ?? 0);

export const smoothing = signal(kept > 0 && kept < 1 ? kept : 0);

const CHOICES = [
  ["0", "off"],
  ["0.6", "light"],
  ["0.9", "strong"],
] as const;

export function Smoothing() {
  const set = (value: string) => {
    smoothing.value = Number(value);
    localStorage.setItem("mcprl-smoothing", value);
  };
  return (
    <fieldset class="segments">
      <legend>Smoothing</legend>
      {CHOICES.map(([value, label]) => (
        <label key={value}>
          <input type="radio" name="smoothing" value={value} checked={smoothing.value === Number(value)} onChange={() => set(value)} />
          <span>{label}</span>
        </label>
      ))}
    </fieldset>
  );
}
