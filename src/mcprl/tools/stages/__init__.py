"""The stages of a tool call, one file each. `mcprl.tools.pipeline` puts them in order."""
