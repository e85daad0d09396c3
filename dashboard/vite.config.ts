/** Builds the pages into the Python package, from where the server serves them. */
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/mcprl/dashboard/static",
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
        target: process.env["MCPRL_DASHBOARD"] ?? "http://127.0.0.1:8765",
        changeOrigin: true,
        headers: { origin: "" },
      },
    },
  },
});
