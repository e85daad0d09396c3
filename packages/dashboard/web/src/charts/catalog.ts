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
const NOT_YET = "No step is recorded yet. The first point appears when the first step ends.";
const NO_UPDATE = "No update has been made yet: this is measured while the learner learns.";

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
    about: "Shares of episodes that reached their goal, of calls that tools accepted, and of turns that made a call.",
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
    about: "Share of groups whose members all have the same reward, from which nothing can be learned.",
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
    about: "The kinds of tokens: sampled freely, sampled when the grammar left one text or one token, or context.",
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
    marks: (bounds) => [mark(bounds.min_learnable_share, "least")],
    absent: NO_UPDATE,
  },
  {
    section: "Tokens",
    title: "Tokens per step",
    about: "Tokens that the policy sampled, those of them that carry loss, and the context around them.",
    series: named(["sampled_tokens", "sampled"], ["learnable_tokens", "learnable"], ["context_tokens", "context"]),
    absent: NOT_YET,
  },
  {
    section: "Update",
    title: "KL",
    about: "Divergence per token, in nats: from the policy that sampled, over all sampled tokens, and from the reference.",
    series: named(["kl", "sampling policy"], ["kl_unmasked", "all sampled"], ["kl_reference", "reference"]),
    marks: (bounds) => [mark(bounds.kl_target, "target"), mark(bounds.kl_cap, "cap")],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Ratio",
    about: "New over old probability of the tokens of an update: mean, and tenth, fiftieth and ninetieth percentile.",
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
    about: "A healthy update makes good tokens more likely and bad ones less likely.",
    series: named(["ratio_mean_positive", "better"], ["ratio_mean_negative", "worse"]),
    colours: ["--scale-up", "--scale-down"],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Active and clipped",
    about: "Shares of tokens that move the weights, whose gradient is clipped, and that the ratio gate drops.",
    series: named(["active_fraction", "active"], ["clipped_fraction", "clipped"], ["gated_fraction", "gated"]),
    format: percent,
    range: [0, 1],
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Policy loss",
    about: "The loss that was minimised, and its parts.",
    series: named(["policy_loss", "policy"], ["loss", "whole"], ["kl_loss", "KL"], ["imitation_loss", "imitation"]),
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Value loss",
    about: "How far the value head is from the returns.",
    series: named(["value_loss", "value loss"]),
    absent: "This run has no value head: its advantages come from the groups alone.",
  },
  {
    section: "Update",
    title: "Explained variance",
    about: "How much of the returns the value head predicts: 1 is all, 0 is no better than a constant.",
    series: named(["explained_variance", "explained"]),
    range: [null, 1],
    absent: "This run has no value head.",
  },
  {
    section: "Update",
    title: "Entropy",
    about: "Of the policy at the tokens that carry loss, in nats. A fall to 0 means that it has stopped exploring.",
    series: named(["entropy", "entropy"]),
    absent: NO_UPDATE,
  },
  {
    section: "Update",
    title: "Gradient norm",
    about: "Before clipping, averaged over the optimiser steps.",
    series: named(["grad_norm", "norm"]),
    absent: "The engine of this run does not report gradient norms, or no update has been made yet.",
  },
  {
    section: "Trust",
    title: "Alignment",
    about: "Share of the tokens trained on that are exactly those sampled. Anything below 100% is an error.",
    series: named(["alignment", "aligned"]),
    format: percent,
    range: [null, 1.02],
    absent: NO_UPDATE,
  },
  {
    section: "Trust",
    title: "Parity of sampler and learner",
    about: "How far sampler and learner differ on the same tokens before any update, in nats.",
    series: named(["parity_logprob_mean_abs_error", "mean error"], ["parity_logprob_max_abs_error", "largest"], ["parity_kl", "KL"]),
    absent: "All tokens were sampled by older weights, so sampler and learner cannot be compared.",
  },
  {
    section: "Trust",
    title: "Staleness",
    about: "How many versions the weights that sampled a token are behind the newest.",
    series: named(["staleness_mean", "mean"], ["staleness_max", "most"]),
    range: [0, null],
    absent: "This run does not record the age of its weights.",
  },
  {
    section: "Trust",
    title: "Importance weights",
    about: "Correction for differences between sampler and learner: its mean, and the share that is cut off.",
    series: named(["importance_mean", "mean"], ["importance_cut_fraction", "cut"]),
    absent: "This run does not correct for differences between sampler and learner.",
  },
  {
    section: "Pipeline",
    title: "Time of a step",
    about: "Seconds from the end of one step to the end of the next, and how many of them went into collecting and saving.",
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
    about: "Tokens sampled per second of collecting.",
    series: named(["sampled_tokens_per_second", "tokens/s"]),
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Tools",
    title: "Tool latency",
    about: "Mean time from a call to its answer, including waits and retries.",
    series: named(["tool_latency_mean_s", "mean"]),
    format: duration,
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Tools",
    title: "Calls",
    about: "Calls that the policy made in a step, and those of them that were made to fail on purpose.",
    series: named(["calls", "calls"], ["calls_injected", "injected failures"]),
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Tools",
    title: "Lost to infrastructure",
    about: "Episodes that were lost and played again, and restarts of tool servers since the run began.",
    series: named(["episodes_lost_to_infrastructure", "episodes lost"], ["server_restarts", "restarts"]),
    range: [0, null],
    absent: NOT_YET,
  },
  {
    section: "Machine",
    title: "Memory",
    about: "Of the trainer, of all processes that it started, and free on the machine, in GiB.",
    series: named(["memory_trainer_gib", "trainer"], ["memory_children_gib", "its processes"], ["memory_free_gib", "free"]),
    format: (value) => (value === null ? "–" : `${figure(value)} GiB`),
    range: [0, null],
    absent: "This run was recorded before memory was measured.",
  },
  {
    section: "Machine",
    title: "GPU memory",
    about: "Of all GPUs together, in GiB.",
    series: named(["gpu_memory_gib", "used"], ["gpu_memory_total_gib", "there is"]),
    format: (value) => (value === null ? "–" : `${figure(value)} GiB`),
    range: [0, null],
    absent: "No NVIDIA driver was found on the machine: the run used its CPU.",
  },
  {
    section: "Machine",
    title: "GPU busy",
    about: "Share of the time that the GPUs were busy when the step ended.",
    series: named(["gpu_busy_share", "busy"]),
    format: percent,
    range: [0, 1],
    absent: "No NVIDIA driver was found on the machine: the run used its CPU.",
  },
  {
    section: "Machine",
    title: "CPU load",
    about: "Processes that wanted a core, over the last minute.",
    series: named(["cpu_load", "load"]),
    range: [0, null],
    absent: "This run was recorded before the load was measured.",
  },
];

function ratioOf(part: Figure | undefined, whole: Figure | undefined): Figure {
  return typeof part === "number" && typeof whole === "number" && whole > 0 ? part / whole : null;
}
