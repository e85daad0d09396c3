/** What a token's colour means: its role, or a figure on a scale. */
import type { Tokens } from "../types";

export type Lens = "role" | "advantage" | "ratio" | "logprob" | "version";
export type Role = "sampled" | "forced" | "fixed" | "context";

export interface Shade {
  /** The custom property that holds the hue. */
  hue: string;
  /** How much of it, from 0 to 1. */
  strength: number;
}

export function roleOf(tokens: Tokens, i: number): Role {
  if (!tokens.sampled[i]) return "context";
  return tokens.forced[i] ? "forced" : tokens.fixed[i] ? "fixed" : "sampled";
}

/** Whether there is anything to show through a lens. */
export function hasLens(tokens: Tokens, lens: Lens): boolean {
  if (lens === "advantage") return tokens.advantages !== null;
  return lens === "ratio" ? tokens.ratios !== null : true;
}

/** The largest value on a lens's scale, so that the scale ends with the data. */
export function reach(tokens: Tokens, lens: Lens): number {
  if (lens === "advantage") return largest(tokens.advantages ?? []);
  if (lens === "ratio") return largest((tokens.ratios ?? []).map((ratio) => (ratio ? Math.log(ratio) : 0)));
  if (lens === "logprob") return largest(tokens.logprobs);
  return 1;
}

/** None for a token that the lens does not cover. */
export function shade(tokens: Tokens, i: number, lens: Lens, largestSize: number): Shade | null {
  switch (lens) {
    case "role": {
      const role = roleOf(tokens, i);
      return { hue: `--role-${role}`, strength: role === "context" ? 0.1 : 1 }; // most tokens are context: it stays quiet
    }
    case "advantage":
      return tokens.learnable?.[i] === false ? null : diverging(tokens.advantages?.[i], largestSize);
    case "ratio": {
      const ratio = tokens.ratios?.[i];
      return ratio ? diverging(Math.log(ratio), largestSize) : null; // 0: it carried no loss
    }
    case "logprob": {
      const logprob = tokens.logprobs[i];
      if (!tokens.sampled[i] || logprob === null || logprob === undefined) return null;
      return { hue: "--scale-surprise", strength: portion(logprob, largestSize) };
    }
    case "version": {
      const version = tokens.weights_version[i] ?? -1;
      return version < 0 ? null : { hue: `--series-${version % 8}`, strength: 1 };
    }
  }
}

function diverging(value: number | null | undefined, largestSize: number): Shade | null {
  if (value === null || value === undefined) return null;
  return { hue: value >= 0 ? "--scale-up" : "--scale-down", strength: value === 0 ? 0 : portion(value, largestSize) };
}

function portion(value: number, largestSize: number): number {
  return largestSize > 0 ? Math.min(1, Math.abs(value) / largestSize) : 0;
}

function largest(values: (number | null)[]): number {
  let most = 0;
  for (const value of values) if (value !== null) most = Math.max(most, Math.abs(value));
  return most;
}
