/** The frame of every page: breadcrumbs, whether the page is live, the theme. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { ApiError } from "../api";
import { connection } from "../live";
import { visible } from "../logic/visible";
import { Link } from "../router";
import { theme, toggleTheme } from "../theme";

export interface Crumb {
  label: string;
  to?: string;
}

export function Shell({ crumbs, title, live = false, children }: { crumbs: Crumb[]; title: string; live?: boolean; children: ComponentChildren }) {
  useEffect(() => {
    document.title = `${visible(title)} · mcprl`;
  }, [title]);
  return (
    <>
      <a class="skip" href="#main">Skip to content</a>
      <header class="top">
        <Link to="/" class="brand" aria-label="mcprl, all runs">
          <Logo />
          <span>mcprl</span>
        </Link>
        <nav aria-label="Breadcrumbs">
          <ol class="crumbs">
            {crumbs.map((crumb, i) => (
              <li key={i}>{crumb.to ? <Link to={crumb.to}>{visible(crumb.label)}</Link> : <span aria-current="page">{visible(crumb.label)}</span>}</li>
            ))}
          </ol>
        </nav>
        <div class="top-tools">
          {live && <LiveMark />}
          <button type="button" class="icon-button" onClick={toggleTheme} aria-label={theme.value === "dark" ? "Use the light theme" : "Use the dark theme"}>
            {theme.value === "dark" ? <Sun /> : <Moon />}
          </button>
        </div>
      </header>
      <main id="main" tabIndex={-1}>{children}</main>
    </>
  );
}

function LiveMark() {
  const state = connection.value;
  const text = { live: "Live", connecting: "Connecting", lost: "Reconnecting" }[state];
  return (
    <span class={`live ${state}`} role="status">
      <i class={state === "live" ? "dot pulse" : "dot"} />
      {text}
    </span>
  );
}

export function Problem({ error }: { error: ApiError }) {
  return (
    <div class="problem" role="alert">
      <h2>{error.code ? `${error.code}: ` : ""}{visible(error.what)}</h2>
      {error.fix && <p>{visible(error.fix)}</p>}
    </div>
  );
}

function Logo() {
  return (
    <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="var(--accent-strong)" />
      <path d="M7 22l6-7 5 4 7-10" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" stroke-linejoin="round" />
      <circle cx="25" cy="9" r="2.6" fill="#fff" />
    </svg>
  );
}

function Sun() {
  return (
    <svg viewBox="0 0 24 24" width="18" height="18" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round">
      <circle cx="12" cy="12" r="4" />
      <path d="M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6l1.4 1.4M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4" />
    </svg>
  );
}

function Moon() {
  return (
    <svg viewBox="0 0 24 24" width="18" height="18" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round">
      <path d="M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z" />
    </svg>
  );
}
