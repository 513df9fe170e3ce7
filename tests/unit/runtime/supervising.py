"""A supervisor as a program: `supervising.py <state folder> <JSON>` with name: command pairs and options."""

import json
import sys
from pathlib import Path

from tideline_runtime.logging import configure_logging
from tideline_runtime.supervisor import Child, RestartPolicy, Supervisor

if __name__ == "__main__":
    configure_logging("supervisor")
    plan = json.loads(sys.argv[2])
    children = [Child(name, tuple(command)) for name, command in plan["children"].items()]
    policy = RestartPolicy(**plan.get("restart", {}))
    sys.exit(Supervisor(children, Path(sys.argv[1]), restart=policy, grace_s=plan.get("grace_s", 20)).run())
