"""The dashboard: runs and their episodes in a browser on this machine, live. `mcprl dashboard` serves it.

    folder of runs ──▶ run_list ──▶ run_files, live_episodes ──▶ watching ──▶ server-sent events
                                └─▶ episode_index (DuckDB) ─────▶ answers in JSON

Nothing is written into the folder of a run. What episodes say is hostile: it leaves this server as JSON only, and no
page is ever put together from it.
"""
