"""The `tideline` command: create, write, read and maintain tables from a shell or a script.

Each module holds one group of commands and is registered in `main`. This package only translates files and arguments into calls of
`tideline_table`, and results into text or JSON.
"""
