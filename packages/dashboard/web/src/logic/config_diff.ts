/** Settings of several runs beside each other. */

export interface SettingDifference {
  setting: string;
  values: (string | null)[];
}

/** The settings that differ between runs, by their dotted names; null if a run does not have one. */
export function settingDifferences(configs: Record<string, unknown>[]): SettingDifference[] {
  const flat = configs.map((config) => flatten(config));
  const settings = [...new Set(flat.flatMap((config) => [...config.keys()]))].sort();
  return settings
    .map((setting) => ({ setting, values: flat.map((config) => config.get(setting) ?? null) }))
    .filter(({ values }) => new Set(values).size > 1);
}

function flatten(value: unknown, path = "", into = new Map<string, string>()): Map<string, string> {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0) {
    for (const [name, inner] of Object.entries(value)) flatten(inner, path ? `${path}.${name}` : name, into);
  } else if (path) into.set(path, typeof value === "string" ? value : JSON.stringify(value));
  return into;
}
