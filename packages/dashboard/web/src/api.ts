/** Asking the server: one function, one error, one hook. */
import { useEffect, useRef, useState } from "preact/hooks";

/** An error from the server, and its fix. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    readonly what: string,
    readonly fix: string,
  ) {
    super(what);
  }
}

export async function ask<T>(url: string, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(url, { headers: { accept: "application/json" }, ...(signal && { signal }) });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("", "the server does not answer", "check that `mcprl dashboard` is still running, then reload the page");
  }
  const body: unknown = await response.json().catch(() => null);
  if (response.ok) return body as T;
  const said = (body as { error?: { code?: string; what?: string; fix?: string } } | null)?.error;
  throw new ApiError(said?.code ?? String(response.status), said?.what ?? response.statusText, said?.fix ?? "");
}

export interface Loaded<T> {
  data: T | null;
  error: ApiError | null;
  loading: boolean;
}

/** The answer to a request; the last answer stays while a new one is awaited. No request if `url` is null. */
export function useAnswer<T>(url: string | null, again: unknown = 0): Loaded<T> {
  const [state, setState] = useState<Loaded<T>>({ data: null, error: null, loading: url !== null });
  const asked = useRef<string | null>(null);
  useEffect(() => {
    if (url === null) {
      setState({ data: null, error: null, loading: false });
      return;
    }
    const stop = new AbortController();
    asked.current = url;
    setState((before) => ({ ...before, loading: true }));
    ask<T>(url, stop.signal).then(
      (data) => setState({ data, error: null, loading: false }),
      (error: unknown) => {
        if (!stop.signal.aborted) setState({ data: null, error: asError(error), loading: false });
      },
    );
    return () => stop.abort();
  }, [url, again]);
  return state;
}

export function asError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError("", String(error), "reload the page");
}

/** A query of those parameters that are set. */
export function query(parameters: Record<string, string | number | null | undefined>): string {
  const set = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
}

export const runUrl = (id: string, rest = ""): string => `/api/runs/${encodeURIComponent(id)}${rest}`;
