/** Builds the pages into the Python package, from where the server serves them. */
import { defineConfig } from "vite";

// The link that `mcprl dashboard` printed, with its token.
const link = new URL(process.env["MCPRL_DASHBOARD"] ?? "http://127.0.0.1:8765");

export default defineConfig({
  build: {
    outDir: "../src/mcprl_dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    // The server's policy allows no scripts but files of its own: nothing may be inlined, not even small assets.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  // `npm run dev` beside a running `mcprl dashboard`: pages from here, answers from there.
  server: {
    proxy: {
      "/api": {
        target: link.origin,
        changeOrigin: true,
        headers: { origin: "", cookie: `mcprl-${link.port}=${link.searchParams.get("token") ?? ""}` },
      },
    },
  },
});
