/** Every chart over steps: what it shows, of which metrics, and what it means. */
import { duration, figure, percent } from "../logic/format";
import type { Bounds, Figure, StepMetrics } from "../types";
import type { Mark } from "./plot";

export interface SeriesSpec {
  metric: string;
  label: string;
  /** For a series that is made of several metrics. */
  value?: (line: StepMetrics) => Figure;
}

export interface ChartSpec {
  title: string;
  about: string;
  section: Section;
  series: SeriesSpec[] | { prefix: string };
  format?: (value: Figure) => string;
  range?: [number | null, number | null];
  stacked?: boolean;
  /** The index of the first colour, if it is not that of the first series. */
  colours?: string[];
  marks?: (bounds: Bounds) => (Mark | null)[];
  absent: string;
}

export const SECTIONS = ["Learning", "Tokens", "Update", "Trust", "Pipeline", "Tools", "Machine"] as const;
export type Section = (typeof SECTIONS)[number];

const named = (...pairs: [metric: string, label: string][]): SeriesSpec[] => pairs.map(([metric, label]) => ({ metric, label }));
const mark = (value: Figure | undefined, label: string): Mark | null => (value === null || value === undefined || value === 0 ? null : { value, label });
const NOT_YET = "No steps recorded yet. The first point appears after the first step.";
const NO_UPDATE = "No update yet: this metric is measured during updates.";

/** Shares of all tokens, of which every token has exactly one. */
function shareOfAll(part: (line: { sampled: number; forced: number; fixed: number }) => number) {
  return (line: StepMetrics): Figure => {
    const { sampled_share: sampled, forced_share: forced, fixed_text_share: fixed } = line;
    if (typeof sampled !== "number" || typeof forced !== "number" || typeof fixed !== "number") return null;
    return part({ sampled, forced, fixed });
  };
}

export const CHARTS: ChartSpec[] = [
  {
    section: "Learning",
    title: "Reward",
    about: "Mean reward of the step's episodes.",
    series: named(["reward", "reward"]),
    absent: NOT_YET,
  },
  {
    section: "Learning",
    title: "Success",
    about: "Share of episodes that reached their goal, share of calls that tools accepted, share of turns with a call.",
    series: named(["success_rate", "solved"], ["valid_call_rate", "valid calls"], ["turns_with_call_rate", "turns with a call"]),
    format: percent,
    range: [0, 1],
    absent: NOT_YET,
  },
  {
    section: "Learning",
    title: "Parts of the reward",
    about: "Each part, averaged over the episodes whose goal checks it.",
    series: { prefix: "reward_part_" },
    absent: "The reward of this run has no parts.",
  },
  {
    section: "Learning",
    title: "How episodes ended",
    about: "Each episode ends for exactly one reason; the shares add up to 100%.",
    series: { prefix: "stop_" },
    format: percent,
    range: [0, 1],
    stacked: true,
    absent: NOT_YET,
  },
  {
    section: "Learning",
    title: "Groups without signal",
    about: "Share of groups in which all episodes have the same reward, which leaves nothing to learn.",
    series: [{ metric: "dead_groups", label: "dead groups", value: (line) => ratioOf(line["groups_without_variance"], line["groups"]) }],
    format: percent,
    range: [0, 1],
    absent: NOT_YET,
  },
  {
    section: "Learning",
    title: "Turns per episode",
    about: "Mean number of turns per episode.",
    series: named(["turns_per_episode", "turns"]),
    absent: NOT_YET,
  },
  {
    section: "Tokens",
    title: "Token mask",
    about: "Kinds of tokens: sampled freely, fixed (the grammar allowed one text), forced (the grammar allowed one token), or context.",
    series: [
      { metric: "mask_free", label: "sampled", value: shareOfAll((s) => s.sampled * (1 - s.forced - s.fixed)) },
      { metric: "mask_fixed", label: "fixed", value: shareOfAll((s) => s.sampled * s.fixed) },
      { metric: "mask_forced", label: "forced", value: shareOfAll((s) => s.sampled * s.forced) },
      { metric: "mask_context", label: "context", value: shareOfAll((s) => 1 - s.sampled) },
    ],
    colours: ["--role-sampled", "--role-fixed", "--role-forced", "--role-context"],
    format: percent,
    range: [0, 1],
    stacked: true,
    absent: NO_UPDATE,
  },
  {
    section: "Tokens",
    title: "Learnable share",
    about: "Share of the sampled tokens that carry loss.",
    series: named(["learnable_share", "learnable"], ["forced_share", "forced"], ["fixed_text_share", "fixed"]),
    format: percent,
    range: [0, 1],
    marks: (bounds) => [mark(bounds.min_learnable_share, "minimum")],
    absent: NO_UPDATE,
  },
  {
    section: "Tokens",
    title: "Tokens per step",
    about: "Sampled tokens, sampled tokens that carry loss, and context tokens.",
    series: named(["sampled_tokens", "sampled"], ["learnable_tokens", "learnable"], ["context_tokens", "context"]),
    absent: NOT_YET,
  },
  {
    section: "Update",
    title: "KL",
    about: "KL in nats per token: to the sampling policy (over learnable tokens, and over all sampled tokens), and to the reference.",
    series: named(["kl", "sampling policy"], ["kl_unmasked", "all sampled"], ["kl_reference", "reference"]),
    marks: (bounds) => [mark(bounds.kl_target, "target"), mark(bounds.kl_cap, "cap")],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Ratio",
    about: "New divided by old probability of each token in an update: mean, and 10th, 50th and 90th percentile.",
    series: named(["ratio_mean", "mean"], ["ratio_p10", "p10"], ["ratio_p50", "p50"], ["ratio_p90", "p90"]),
    marks: (bounds) => [
      mark(typeof bounds.clip_low === "number" ? 1 - bounds.clip_low : null, "clip low"),
      mark(typeof bounds.clip_high === "number" ? 1 + bounds.clip_high : null, "clip high"),
    ],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Ratio by advantage",
    about: "A healthy update makes tokens with positive advantage more likely and the others less likely.",
    series: named(["ratio_mean_positive", "better"], ["ratio_mean_negative", "worse"]),
    colours: ["--scale-up", "--scale-down"],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Active and clipped",
    about: "Share of tokens that contribute to the gradient, are clipped, or are dropped by the ratio gate.",
    series: named(["active_fraction", "active"], ["clipped_fraction", "clipped"], ["gated_fraction", "gated"]),
    format: percent,
    range: [0, 1],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Policy loss",
    about: "The minimized loss and its parts.",
    series: named(["policy_loss", "policy"], ["loss", "total"], ["kl_loss", "KL"], ["imitation_loss", "imitation"]),
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Value loss",
    about: "Error of the value head's predictions of the returns.",
    series: named(["value_loss", "value loss"]),
    absent: "This run has no value head: its advantages come only from the groups.",
  },
  {
    section: "Update",
    title: "Explained variance",
    about: "Share of the variance of returns that the value head predicts: 1 is perfect, 0 is no better than a constant.",
    series: named(["explained_variance", "explained"]),
    range: [null, 1],
    absent: "This run has no value head.",
  },
  {
    section: "Update",
    title: "Entropy",
    about: "Entropy of the policy at tokens that carry loss, in nats. Near 0, the policy has stopped exploring.",
    series: named(["entropy", "entropy"]),
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Gradient norm",
    about: "Gradient norm before clipping, averaged over the optimizer steps.",
    series: named(["grad_norm", "norm"]),
    absent: "The engine of this run does not report gradient norms, or no update has been made yet.",
  },
  {
    section: "Trust",
    title: "Alignment",
    about: "Share of learned tokens that match the sampled tokens. Anything below 100% is an error.",
    series: named(["alignment", "aligned"]),
    format: percent,
    range: [null, 1.02],
    absent: NO_UPDATE,
  },
  {
    section: "Trust",
    title: "Parity of sampler and learner",
    about: "Difference between sampler and learner on the same tokens before any update, in nats.",
    series: named(["parity_logprob_mean_abs_error", "mean error"], ["parity_logprob_max_abs_error", "max error"], ["parity_kl", "KL"]),
    absent: "All tokens were sampled by older weights, so sampler and learner cannot be compared.",
  },
  {
    section: "Trust",
    title: "Staleness",
    about: "How many versions the weights that sampled a token are behind the newest weights.",
    series: named(["staleness_mean", "mean"], ["staleness_max", "max"]),
    range: [0, null],
    absent: "This run does not record the age of its weights.",
  },
  {
    section: "Trust",
    title: "Importance weights",
    about: "Correction for differences between sampler and learner: mean weight, and share of truncated weights.",
    series: named(["importance_mean", "mean"], ["importance_cut_fraction", "truncated"]),
    absent: "This run does not correct for differences between sampler and learner.",
  },
  {
    section: "Pipeline",
    title: "Step time",
    about: "Time from the end of one step to the end of the next, and the parts spent on collecting and saving.",
    series: named(["step_s", "step"], ["collect_s", "collect"], ["save_s", "save"]),
    format: duration,
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Pipeline",
    title: "Idle",
    about: "Share of a step in which the sampler, or the learner, was idle.",
    series: named(["sampler_idle_share", "sampler"], ["learner_idle_share", "learner"]),
    format: percent,
    range: [0, 1],
    absent: NOT_YET,
  },
  {
    section: "Pipeline",
    title: "Sampling speed",
    about: "Tokens sampled per second while episodes are collected.",
    series: named(["sampled_tokens_per_second", "tokens/s"]),
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Tools",
    title: "Tool latency",
    about: "Mean time from a call to its result, including waiting and retries.",
    series: named(["tool_latency_mean_s", "mean"]),
    format: duration,
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Tools",
    title: "Calls",
    about: "Calls made by the policy in a step, and how many of them failed because an error was injected.",
    series: named(["calls", "calls"], ["calls_injected", "injected failures"]),
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Tools",
    title: "Lost to infrastructure",
    about: "Episodes that were lost and rerun, and restarts of tool servers since the run started.",
    series: named(["episodes_lost_to_infrastructure", "episodes lost"], ["server_restarts", "restarts"]),
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Machine",
    title: "Memory",
    about: "Memory in GiB: used by the trainer, used by the processes that it started, and free on the machine.",
    series: named(["memory_trainer_gib", "trainer"], ["memory_children_gib", "its processes"], ["memory_free_gib", "free"]),
    format: (value) => (value === null ? "–" : `${figure(value)} GiB`),
    range: [0, null],
    absent: "This run was recorded before memory was measured.",
  },
  {
    section: "Machine",
    title: "GPU memory",
    about: "Memory in use on all GPUs, in GiB.",
    series: named(["gpu_memory_gib", "used"], ["gpu_memory_total_gib", "total"]),
    format: (value) => (value === null ? "–" : `${figure(value)} GiB`),
    range: [0, null],
    absent: "No NVIDIA driver was found on the machine: the run used its CPU.",
  },
  {
    section: "Machine",
    title: "GPU busy",
    about: "GPU utilization at the end of the step.",
    series: named(["gpu_busy_share", "busy"]),
    format: percent,
    range: [0, 1],
    absent: "No NVIDIA driver was found on the machine: the run used its CPU.",
  },
  {
    section: "Machine",
    title: "CPU load",
    about: "Mean number of runnable processes over the last minute.",
    series: named(["cpu_load", "load"]),
    range: [0, null],
    absent: "This run was recorded before the load was measured.",
  },
];

function ratioOf(part: Figure | undefined, whole: Figure | undefined): Figure {
  return typeof part === "number" && typeof whole === "number" && whole > 0 ? part / whole : null;
}
