// A change needs a new number in the name, as browsers keep what is in assets/ for good.
// Runs before the first paint, so that the theme does not flash. A file of its own: the policy forbids inline scripts.
const chosen = localStorage.getItem("mcprl-theme");
const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : preferred;
