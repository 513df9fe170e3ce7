"""The entry point of `tideline-webhooks`."""

import sys

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_runtime.lifecycle import run_service
from tideline_webhooks.service import WebhooksService
from tideline_webhooks.settings import WebhooksSettings


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(WebhooksService, WebhooksSettings))


if __name__ == "__main__":
    main()
