/** Where the reader is: the address bar is the only state that pages share. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

interface Place {
  path: string;
  query: URLSearchParams;
}

const here = (): Place => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export const place = signal<Place>(here());

addEventListener("popstate", () => (place.value = here()));

export function go(url: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  const before = place.value.path;
  place.value = here();
  if (before !== place.value.path && !replace) scrollTo(0, 0);
}

/** Set some parameters of the present page's address; null removes one. */
export function setQuery(changes: Record<string, string | null>, { replace = true } = {}): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) value ? query.set(name, value) : query.delete(name);
  const text = query.toString();
  go(location.pathname + (text ? `?${text}` : ""), { replace });
}

interface LinkProps {
  to: string;
  children: ComponentChildren;
  class?: string;
  "aria-label"?: string;
  "aria-current"?: "page";
  onFocus?: () => void;
}

/** A link inside the dashboard. A click with a modifier key is left to the browser. */
export function Link({ to, children, ...rest }: LinkProps) {
  const onClick = (event: MouseEvent) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={to} onClick={onClick} {...rest}>
      {children}
    </a>
  );
}
