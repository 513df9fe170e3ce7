"""The `tideline` command, for people and scripts: create, write, read and look after tables.

One module per group of commands, registered in `main`. What a table is and does belongs into `tideline_table`; this package turns
files and words into its calls, and its answers into lines or JSON.
"""
