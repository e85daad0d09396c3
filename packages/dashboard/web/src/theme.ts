/** Light or dark: what the system prefers until the reader chooses, and then what the reader chose. */
import { signal } from "@preact/signals";

type Theme = "light" | "dark";

const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = (): Theme | null => {
  const kept = localStorage.getItem("mcprl-theme");
  return kept === "light" || kept === "dark" ? kept : null;
};
const present = (): Theme => chosen() ?? (system.matches ? "dark" : "light");

export const theme = signal<Theme>(present());

system.addEventListener("change", () => show(present()));

export function toggleTheme(): void {
  const next: Theme = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem("mcprl-theme", next);
  show(next);
}

function show(next: Theme): void {
  document.documentElement.dataset["theme"] = next;
  theme.value = next;
}

/** The current colour of a custom property, for drawing on a canvas. */
export function colour(property: string, alpha = 1): string {
  const value = getComputedStyle(document.documentElement).getPropertyValue(property).trim();
  if (alpha >= 1) return value;
  return value + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
