// Vercel's AI SDK: it asks for responses, and refers to earlier items by their ids.
import { readFileSync } from "node:fs";
import { openai } from "@ai-sdk/openai";
import { createMCPClient } from "@ai-sdk/mcp";
import { generateText, stepCountIs } from "ai";

const task = JSON.parse(readFileSync(0, "utf8"));
const client = await createMCPClient({ transport: { type: "http", url: process.env.MCPRL_MCP_URL } });
const { text } = await generateText({
  model: openai("gpt-5"),
  tools: await client.tools(),
  stopWhen: stepCountIs(8),
  system: "Use the tools to answer.",
  prompt: task.prompt,
});
console.log(text);
await client.close();
