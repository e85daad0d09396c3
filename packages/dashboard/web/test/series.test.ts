import { describe, expect, it } from "vitest";
import { gapsOf, withIdle } from "../src/logic/gantt_rows";
import { alignSteps, column, mergeSpans, mergeSteps, namesIn, smooth, stretches } from "../src/logic/series";
import { reach, roleOf, shade } from "../src/logic/token_colours";
import type { StepMetrics, Tokens, Verdict } from "../src/types";

const line = (step: number, reward: number | null): StepMetrics => ({ step, reward });

describe("steps that arrive live", () => {
  it("are put behind those that are known", () => {
    expect(mergeSteps([line(0, 1)], [line(1, 2), line(2, 3)]).map((one) => one.step)).toEqual([0, 1, 2]);
  });
  it("replace themselves when they come twice, and come in order", () => {
    const merged = mergeSteps([line(0, 1), line(2, 3)], [line(2, 9), line(1, 2)]);
    expect(merged).toEqual([line(0, 1), line(1, 2), line(2, 9)]);
  });
  it("change nothing where there are none", () => {
    const known = [line(0, 1)];
    expect(mergeSteps(known, [])).toBe(known);
    const spans = [{ step: 0, activity: "save", start: 1, end: 2 }];
    expect(mergeSpans(spans, spans)).toBe(spans);
  });
});

describe("a column", () => {
  it("has a gap where a step lacks the metric", () => {
    expect(column([line(0, 1), { step: 1 }], "reward")).toEqual([1, null]);
    expect(namesIn([{ step: 0, reward: 1, kl: null }])).toEqual(new Set(["reward"]));
  });
  it("of several runs stands over the steps of all", () => {
    expect(alignSteps([[line(0, 1), line(2, 3)], [line(1, 5)]], "reward")).toEqual({ steps: [0, 1, 2], columns: [[1, null, 3], [null, 5, null]] });
  });
  it("that does not move is the same when smoothed, gaps included", () => {
    smooth([2, null, 2, 2], 0.9).forEach((value, i) => (i === 1 ? expect(value).toBeNull() : expect(value).toBeCloseTo(2)));
    expect(smooth([1, 2], 0)).toEqual([1, 2]);
  });
});

it("verdicts that last are one stretch", () => {
  const say = (step: number, severity: Verdict["severity"]): Verdict => ({ step, severity, name: "KL", what: `at ${step}`, fix: "" });
  const found = stretches([say(4, "bad"), say(1, "warn"), say(2, "warn"), say(5, "bad"), say(8, "bad")]).get("KL")!;
  expect(found.map(({ from, to, severity }) => [from, to, severity])).toEqual([[1, 2, "warn"], [4, 5, "bad"], [8, 8, "bad"]]);
  expect(found[1]!.last.what).toBe("at 5");
});

it("what is between activities is idle", () => {
  const spans = [
    { step: 0, activity: "collect", start: 100, end: 110 },
    { step: 0, activity: "update", start: 110, end: 114 },
    { step: 1, activity: "collect", start: 112, end: 120 },
  ];
  expect(gapsOf(spans, ["collect"])).toEqual([{ from: 10, to: 12 }]);
  expect(gapsOf(spans, ["update", "publish", "save"])).toEqual([{ from: 0, to: 10 }, { from: 14, to: 20 }]);
  expect(withIdle([])).toEqual([]);
});

describe("a token's colour", () => {
  const tokens: Tokens = {
    text: ["a", "b", "c", "d"],
    sampled: [false, true, true, true],
    forced: [false, false, true, false],
    fixed: [false, false, false, true],
    logprobs: [0, -2, 0, -1],
    turn_index: [-1, 0, 0, 0],
    weights_version: [-1, 3, 3, 4],
    learnable: [false, true, false, true],
    advantages: [0, 0.5, 0, -1],
    ratios: [0, 2, 0, 0.5],
  };
  it("tells its role", () => {
    expect([0, 1, 2, 3].map((i) => roleOf(tokens, i))).toEqual(["context", "sampled", "forced", "fixed"]);
  });
  it("tells the sign of its advantage, and by how much", () => {
    expect(shade(tokens, 1, "advantage", reach(tokens, "advantage"))).toEqual({ hue: "--scale-up", strength: 0.5 });
    expect(shade(tokens, 3, "advantage", reach(tokens, "advantage"))).toEqual({ hue: "--scale-down", strength: 1 });
  });
  it("is as strong for half as for twice the probability", () => {
    const [twice, half] = [1, 3].map((i) => shade(tokens, i, "ratio", reach(tokens, "ratio"))!);
    expect(twice!.strength).toBeCloseTo(half!.strength);
  });
  it("says nothing of what was not sampled", () => {
    for (const lens of ["advantage", "ratio", "logprob", "version"] as const) expect(shade(tokens, 0, lens, 1)).toBeNull();
  });
});
