"""Request bodies of the lease API. They are limited in size and validated before any lock is accessed."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tideline_lock_service.errors import InvalidRequest, RequestTooLarge
from tideline_locks.port import MAX_FENCE, MIN_TTL_S, OWNER_LIMIT

MAX_BODY_BYTES = 4096

Owner = Annotated[str, Field(min_length=1, max_length=OWNER_LIMIT)]
LeaseId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
Ttl = Annotated[float, Field(ge=MIN_TTL_S, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class AcquireRequest(_Body):
    """`POST /v1/leases/{name}/acquire`. `wait_s` 0 tries once; `fence` is the newest table log sequence that the caller saw.

    A caller that chooses the `lease_id` itself, unique and secret, may repeat the request: after a lost reply it gets the same
    lease, and while it waits it keeps its place in the queue. Without a `fence`, it is asked for one when it is next.
    """

    owner: Owner
    ttl_s: Ttl
    wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    fence: Annotated[int, Field(ge=0, le=MAX_FENCE)] | None = None
    lease_id: LeaseId | None = None


class RenewRequest(_Body):
    """`POST /v1/leases/{name}/renew`. `ttl_s` is the value given to `acquire`."""

    owner: Owner
    lease_id: LeaseId
    ttl_s: Ttl


class ReleaseRequest(_Body):
    """`POST /v1/leases/{name}/release`."""

    owner: Owner
    lease_id: LeaseId


class WithdrawRequest(_Body):
    """`POST /v1/leases/{name}/withdraw`: the caller no longer waits. A lease that it was granted without a reply ends."""

    owner: Owner
    lease_id: LeaseId


class BreakRequest(_Body):
    """`POST /v1/leases/{name}/break`. With `force`, also a lease that has not expired; `owner` is the person who asks."""

    owner: Owner
    force: bool = False
    reason: Annotated[str, Field(max_length=500)] = ""


BodyT = TypeVar("BodyT", bound=_Body)


def parsed(kind: type[BodyT], body: bytes) -> BodyT:
    """Parse the body. Raises `RequestTooLarge` and `InvalidRequest`."""
    if len(body) > MAX_BODY_BYTES:
        raise RequestTooLarge(f"a body of {len(body)} bytes", expected=f"at most {MAX_BODY_BYTES}")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        fields = ", ".join(f"{name}{'' if field.is_required() else '?'}" for name, field in kind.model_fields.items())
        raise InvalidRequest(f"{place}: {first['msg']}", expected=f"a JSON object of {fields}") from None
