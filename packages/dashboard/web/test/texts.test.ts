import { describe, expect, it } from "vitest";
import { settingDifferences } from "../src/logic/config_diff";
import { diffWords, likeness, splitWords } from "../src/logic/diff";
import { jsonPieces, prettyJson } from "../src/logic/json_pieces";
import { visible, visiblePieces } from "../src/logic/visible";
import { paths, routeOf } from "../src/logic/routes";

/** Numbers that are the same in every run. */
function* draws(seed: number): Generator<number> {
  for (;;) yield (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
}

describe("a difference of two texts", () => {
  it("names the words that changed", () => {
    expect(diffWords("call the old tool now", "call the new tool now")).toEqual([
      { kind: "same", text: "call the " },
      { kind: "removed", text: "old " },
      { kind: "added", text: "new " },
      { kind: "same", text: "tool now" },
    ]);
  });
  it("gives both texts back, whatever they are", () => {
    const draw = draws(7);
    const text = () => Array.from({ length: Math.floor(draw.next().value! * 30) }, () => "abc \n,"[Math.floor(draw.next().value! * 6)]).join(" ");
    for (let i = 0; i < 300; i++) {
      const [before, after] = [text(), text()];
      const changes = diffWords(before, after);
      expect(changes.filter((c) => c.kind !== "added").map((c) => c.text).join("")).toBe(before);
      expect(changes.filter((c) => c.kind !== "removed").map((c) => c.text).join("")).toBe(after);
    }
  });
  it("of large texts without a word in common comes at once", () => {
    const changes = diffWords("a1 ".repeat(1) + Array.from({ length: 8000 }, (_, i) => `x${i}`).join(" "), Array.from({ length: 8000 }, (_, i) => `y${i}`).join(" "));
    expect(likeness(changes)).toBe(0);
  });
  it("loses no character to the words", () => {
    const odd = "naïve  \t[x]{\"k\": 1}\n\n→ 数 𝒳\u202e";
    expect(splitWords(odd).join("")).toBe(odd);
  });
});

describe("hidden characters", () => {
  it("are written as their code points", () => {
    expect(visible("safe\u202eexe.txt\u0000\u200b")).toBe("safe⟨U+202E⟩exe.txt⟨U+0000⟩⟨U+200B⟩");
    expect(visible("tag\u{e0041}")).toBe("tag⟨U+E0041⟩");
    expect(visible("half \ud83d")).toBe("half ⟨U+D83D⟩");
  });
  it("leave all other text as it is", () => {
    const text = "naïve 数 🎉\n\tline <script>alert(1)</script>";
    expect(visiblePieces(text)).toEqual([{ text }]);
  });
});

describe("JSON", () => {
  it("is cut into pieces that give it back", () => {
    const { text, json } = prettyJson('{"city": "Lima", "n": [1, -2.5e3, null]}');
    expect(json).toBe(true);
    expect(jsonPieces(text).map((piece) => piece.text).join("")).toBe(text);
    expect(jsonPieces(text).filter((piece) => piece.kind === "key").map((piece) => piece.text)).toEqual(['"city"', '"n"']);
  });
  it("is not seen where there is none", () => {
    expect(prettyJson("{not json")).toEqual({ text: "{not json", json: false });
  });
});

it("settings that differ are found by their dotted names", () => {
  const one = { name: "a", learner: { rate: 1, betas: [0.9, 0.99] } };
  const other = { name: "a", learner: { rate: 2, betas: [0.9, 0.99] }, seed: 1 };
  expect(settingDifferences([one, other])).toEqual([
    { setting: "learner.rate", values: ["1", "2"] },
    { setting: "seed", values: [null, "1"] },
  ]);
});

describe("an address", () => {
  it("of an episode may name any task", () => {
    const task = "a/b?c=#ü%";
    expect(routeOf(`/runs/r/episodes/3/${encodeURIComponent(task)}/1`)).toEqual({ page: "episode", run: "r", step: 2, task, member: 1 });
    expect(routeOf(paths.episode("r", 0, task, 1))).toEqual({ page: "episode", run: "r", step: 0, task, member: 1 });
  });
  it("that means nothing leads nowhere", () => {
    for (const path of ["/runs", "/runs/x/episodes/a/b/c", "/runs/x/episodes/0/b/1", "/%", "/elsewhere"]) expect(routeOf(path)).toEqual({ page: "nowhere" });
  });
});
