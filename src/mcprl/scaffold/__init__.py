"""A project to begin with: an MCP server of one's own, tasks, a recipe and a test, copied from `template/`.

The files there are what a user gets, as they stand: they run, are checked like all code here, and are not imported.
"""

from mcprl.scaffold.project import DEFAULT_MODEL, FILES, Project, write_project

__all__ = ["DEFAULT_MODEL", "FILES", "Project", "write_project"]
