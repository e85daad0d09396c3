/** The server's answers. A number that is not finite arrives as null. */

export type Severity = "ok" | "warn" | "bad";
export type Figure = number | null;

export interface Verdict {
  step: number;
  severity: Severity;
  name: string;
  what: string;
  fix: string;
}

export interface RunCard {
  id: string;
  name: string;
  state: string;
  step: number;
  steps: number;
  updated: number | null;
  model: string;
  engine: string | null;
  /** Why a run ended early or cannot be read. */
  why?: string | null;
  reward: Figure[];
  success: Figure[];
  reward_last: Figure;
  success_last: Figure;
  worst: Omit<Verdict, "step"> | null;
}

export interface Bounds {
  clip_low?: Figure;
  clip_high?: Figure;
  kl_target?: Figure;
  kl_cap?: Figure;
  min_learnable_share?: Figure;
}

export interface Run {
  id: string;
  name: string;
  state: string;
  step: number;
  steps: number;
  updated: number | null;
  config: Record<string, unknown>;
  config_yaml: string;
  bounds: Bounds;
  why?: string | null;
  directory: string;
}

/** One line of metrics: the step, and each metric by its name. */
export type StepMetrics = { step: number } & Record<string, Figure | undefined>;

export interface Span {
  step: number;
  activity: string;
  start: number;
  end: number;
}

export interface ToolRow {
  tool: string;
  calls: number;
  errors?: number;
  error_rate?: Figure;
  cache_rate?: Figure;
  p50_s?: Figure;
  p95_s?: Figure;
}

export interface ServerRow {
  server: string;
  calls: number;
  errors: number;
  error_rate: Figure;
  cache_rate: Figure;
  p50_s: Figure;
  p95_s: Figure;
  budget: { unit: "calls" | "usd"; used: number; limit: number } | null;
  restarts: number;
  tools: ToolRow[];
}

export interface Ratios {
  step: number;
  steps: number[];
  edges: number[];
  positive: number[];
  negative: number[];
  below: number;
  above: number;
  clip_low: Figure;
  clip_high: Figure;
  tokens: number;
}

export interface Facets {
  /** Episodes whose turns are still being read; their tools are not counted yet. */
  pending?: number;
  episodes: number;
  /** The first and the last; empty if there are no episodes. */
  steps: number[];
  tasks: { id: string; count: number }[];
  tools: { name: string; count: number }[];
  stops: { name: string; count: number }[];
}

export interface EpisodeRow {
  step: number;
  task_id: string;
  member: number;
  reward: Figure;
  solved: boolean;
  stop: string;
  // These are null while the episode's turns are still being read.
  turns: Figure;
  calls: Figure;
  faults: Figure;
  tokens: Figure;
  sampled_tokens: Figure;
  duration_s: Figure;
  tools: string[] | null;
  preview: string | null;
  live?: boolean;
}

export interface EpisodePage {
  total: number;
  took_ms: number;
  /** Episodes whose turns are still being read; searches do not find them yet. */
  pending?: number;
  /** Files that cannot be read, in words. */
  problems?: string[];
  rows: EpisodeRow[];
}

export interface Call {
  name: string;
  arguments: unknown;
  problem: string | null;
}

export interface Observation {
  tool: string;
  server: string | null;
  text: string;
  fault: string | null;
  latency_s: Figure;
  source: string;
  attempts: number;
  truncated: boolean;
  arguments: unknown;
  worked: boolean;
}

export interface Turn {
  text: string;
  finish: string;
  weights_version: number;
  reward: Figure;
  calls: Call[];
  observations: Observation[];
  /** Why the turns could not be separated; the text is then as recorded. */
  problem?: string | null;
}

export interface Episode {
  step: number;
  task_id: string;
  member: number;
  attempt: number;
  temperature: Figure;
  reward: Figure;
  solved: boolean;
  reward_parts: Record<string, Figure>;
  stop: string;
  duration_s: Figure;
  tokens: number;
  sampled_tokens: number;
  turns: Turn[];
}

export interface Message {
  role: string;
  content: string | null;
  tool_calls?: (WrittenCall & { function?: WrittenCall })[];
}

/** A call in a message of a prompt. */
export interface WrittenCall {
  name: string;
  arguments: unknown;
}

export interface Task {
  prompt: Message[];
  /** Messages before the prompt, the same for every task. */
  preamble: Message[];
  difficulty: string;
  tools: string[] | null;
  goal: unknown;
}

export interface Member {
  member: number;
  reward: Figure;
  solved: boolean;
  stop: string;
  turns: number;
  advantage: Figure;
}

/** An episode of the same task in another step. */
export interface Neighbour {
  step: number;
  task_id: string;
  member: number;
}

export interface EpisodeAnswer {
  episode: Episode;
  task: Task | null;
  task_missing?: string | null;
  group: Member[];
  neighbours: { previous: Neighbour | null; next: Neighbour | null };
}

export interface Tokens {
  text: string[];
  sampled: boolean[];
  forced: boolean[];
  fixed: boolean[];
  logprobs: Figure[];
  turn_index: number[];
  weights_version: number[];
  learnable: boolean[] | null;
  advantages: Figure[] | null;
  ratios: Figure[] | null;
}

export interface TaskStep {
  step: number;
  episodes: number;
  reward_mean: Figure;
  reward_min: Figure;
  reward_max: Figure;
  solved: number;
  members: { member: number; reward: Figure; solved: boolean }[];
}

export interface TaskAnswer {
  task_id: string;
  steps: TaskStep[];
}
