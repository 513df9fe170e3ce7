"""`tideline-console`: pages on which a person sees the tables of a fleet, their timelines, and why services run or not.

It only reads. Its read model is a SQLite file that is rebuilt from the tables and the event log at any time.
"""
