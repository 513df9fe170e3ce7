"""The `tideline` command: create, write, read and maintain tables from a shell or a script.

Modules with an `app` hold one group of commands each and are registered in `main`. This package only translates files and
arguments into calls of the engine (`tideline_table`) and of the services, and results into text or JSON.
"""
