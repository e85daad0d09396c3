"""The dashboard: runs and their episodes in a browser on this machine, live. The command is `mcprl dashboard`.

    folder of runs ──▶ open_run ──▶ line_files ─────────────▶ watching ──▶ server-sent events
                                └─▶ episode_index (DuckDB) ─▶ app ───────▶ answers in JSON

Nothing is written into the folder of a run. The text of episodes is untrusted: the server sends it only as JSON, and
never puts it into a page.
"""
