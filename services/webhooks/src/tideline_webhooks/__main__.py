"""The entry point of `tideline-webhooks`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_runtime.lifecycle import entry_point
from tideline_webhooks.service import WebhooksService
from tideline_webhooks.settings import WebhooksSettings

main = entry_point(WebhooksService, WebhooksSettings)

if __name__ == "__main__":
    main()
