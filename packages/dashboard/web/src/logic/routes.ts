/** The addresses of the pages. */
import { stepNumber } from "./format";

export const paths = {
  runs: "/",
  run: (id: string) => `/runs/${encodeURIComponent(id)}`,
  episodes: (id: string, query = "") => `/runs/${encodeURIComponent(id)}/episodes${query ? `?${query}` : ""}`,
  episode: (id: string, step: number, task: string, member: number) =>
    `/runs/${encodeURIComponent(id)}/episodes/${stepNumber(step)}/${encodeURIComponent(task)}/${member}`,
  task: (id: string, task: string, query = "") =>
    `/runs/${encodeURIComponent(id)}/tasks/${encodeURIComponent(task)}${query ? `?${query}` : ""}`,
  compare: (ids: string[]) => `/compare?runs=${ids.map(encodeURIComponent).join(",")}`,
};

export type Route =
  | { page: "runs" }
  | { page: "run" | "episodes"; run: string }
  | { page: "episode"; run: string; step: number; task: string; member: number }
  | { page: "task"; run: string; task: string }
  | { page: "compare" }
  | { page: "nowhere" };

export function routeOf(path: string): Route {
  let parts: string[];
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return { page: "nowhere" }; // a stray % in an address
  }
  const [first, run, kind, ...rest] = parts;
  if (first === undefined) return { page: "runs" };
  if (first === "compare" && run === undefined) return { page: "compare" };
  if (first !== "runs" || run === undefined) return { page: "nowhere" };
  if (kind === undefined) return { page: "run", run };
  if (kind === "episodes" && rest.length === 0) return { page: "episodes", run };
  if (kind === "episodes" && rest.length === 3) {
    const [step, task, member] = rest as [string, string, string];
    if (/^[1-9]\d*$/.test(step) && /^\d+$/.test(member)) {
      return { page: "episode", run, step: Number(step) - 1, task, member: Number(member) };
    }
  }
  if (kind === "tasks" && rest.length === 1) return { page: "task", run, task: rest[0]! };
  return { page: "nowhere" };
}
