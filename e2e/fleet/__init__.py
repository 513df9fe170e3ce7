"""The end-to-end run: a release of the chart on a real cluster maintains real tables while writers write and parts are killed.

`story` holds the order of events; every other module knows one part: servers, release, writers, pods, faults, events, verification.
"""
