"""What all tests share."""

from __future__ import annotations

import os

# Instants, modification times and Spark sessions are compared across processes: one zone for all of them.
os.environ["TZ"] = "UTC"
