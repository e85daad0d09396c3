/** Server-sent events, kept open as long as a page is. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

export type Connection = "connecting" | "live" | "lost";

export const connection = signal<Connection>("connecting");

type Listeners = Record<string, (data: never) => void>;

/** Listen to events by name. The browser reconnects by itself, and then receives everything that changed. */
export function useEvents(url: string | null, listeners: Listeners): void {
  useEffect(() => {
    if (url === null) return;
    connection.value = "connecting";
    const source = new EventSource(url);
    source.onopen = () => (connection.value = "live");
    source.onerror = () => (connection.value = "lost");
    for (const [name, hear] of Object.entries(listeners)) {
      source.addEventListener(name, (event) => hear(JSON.parse((event as MessageEvent<string>).data) as never));
    }
    return () => source.close();
  }, [url]);
}

/** Now, in seconds since 1970, updated every second: for "12 s ago". */
export const now = signal(Date.now() / 1000);
setInterval(() => (now.value = Date.now() / 1000), 1000);
