import { describe, expect, it } from "vitest";
import { ago, axisFigures, baseName, count, duration, figure, percent, several, signed } from "../src/logic/format";

describe("figures", () => {
  it("have three digits in the shortest notation", () => {
    expect([0, 0.0123, 1.234, 12.34, 123.4, 8, 0.0000041, -0.5].map(figure)).toEqual(["0", "0.012", "1.23", "12.3", "123", "8", "4.1e−6", "−0.500"]);
  });
  it("are a dash where there is no number", () => {
    for (const nothing of [null, undefined, NaN, Infinity]) {
      expect([figure(nothing), percent(nothing), signed(nothing), duration(nothing), count(nothing)]).toEqual(Array(5).fill("–"));
    }
  });
  it("never call nearly all of something all of it", () => {
    expect([1, 0.9997, 0.85, 0.042, 0].map(percent)).toEqual(["100%", "99.97%", "85%", "4.2%", "0%"]);
  });
  it("count with letters from ten thousand on", () => {
    expect([9999, 12345, 4_560_000].map(count)).toEqual(["9,999", "12.3k", "4.6M"]);
    expect([several(1, "step"), several(2, "step")]).toEqual(["1 step", "2 steps"]);
  });
  it("show the sign of a reward", () => {
    expect([signed(0.55), signed(-0.5), signed(0)]).toEqual(["+0.550", "−0.500", "0.000"]);
  });
});

describe("times", () => {
  it("are said in the unit that fits", () => {
    expect([0.003, 0.25, 1.234, 65, 11520, 90000].map(duration)).toEqual(["3.0 ms", "250 ms", "1.23 s", "1m 05s", "3h 12m", "1d 1h"]);
  });
  it("are said by how long ago they were", () => {
    expect([ago(98, 100), ago(40, 100), ago(0, 7200), ago(null, 5)]).toEqual(["just now", "1m ago", "2h ago", "–"]);
  });
});

describe("an axis", () => {
  it("has as many decimals as its marks need", () => {
    expect(axisFigures([0, 2.5, 5])).toEqual(["0.0", "2.5", "5.0"]);
    expect(axisFigures([0, 0.25, 0.5])).toEqual(["0.00", "0.25", "0.50"]);
    expect(axisFigures([0, 10, 20])).toEqual(["0", "10", "20"]);
  });
});

it("a model is called by the last part of its path", () => {
  expect([baseName("models/tiny-qwen3/"), baseName("Qwen/Qwen3-0.6B"), baseName("x")]).toEqual(["tiny-qwen3", "Qwen3-0.6B", "x"]);
});
