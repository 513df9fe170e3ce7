"""Settings that a table may override: their declarations, checks of overrides, and the resulting settings of a table.

A table may override a setting that is declared with `setting(..., per_table=True)`, because the service reads it at each visit
of the table. All other settings hold for a whole process.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tideline_runtime.annotations import nested_model
from tideline_runtime.contract import SettingsT
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.members import PREFIX, SERVICES, import_declarations
from tideline_runtime.setting_errors import expectation, shortened
from tideline_runtime.settings import ServiceSettings, declared_settings

Overrides = Mapping[str, Any]
"""Settings of one service by name, as a source of tables gives them for one table; a nested model is a mapping."""
_UNKNOWN = "extra_forbidden"
ModelT = TypeVar("ModelT", bound=BaseModel)


def per_table_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a settings class or nested model that a table may override, and nested models with such fields."""
    return {name: field for name, field in model.model_fields.items() if is_per_table(field)}


def is_per_table(field: FieldInfo) -> bool:
    """Return whether a table may override this setting, or a part of it."""
    nested = nested_model(field.annotation)
    if nested is not None:
        return bool(per_table_fields(nested))
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("per_table") is True


def per_table_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the dotted names of all settings that a table may override, in order of declaration."""
    return tuple(_names(model, ""))


@functools.cache
def settings_by_service() -> Mapping[str, type[ServiceSettings]]:
    """Return the settings class of each service that is installed and lets tables override settings.

    Services are named as users write them: with hyphens.
    """
    found: dict[str, type[ServiceSettings]] = {}
    for section in SERVICES:
        member = f"{PREFIX}{section}"
        import_declarations(member, "settings")
        for declared in declared_settings():
            is_members = declared.__module__.startswith((f"{member}.", f"{__package__}."))
            if declared.section == section and is_members and per_table_fields(declared):
                found[section.replace("_", "-")] = declared
    return found


def overrides_problem(service: str, own: Any) -> str | None:
    """Return what is wrong with the overrides of a service, in one line: field, value found, value expected.

    None if they are valid.

    None, too, for a service that is not installed here: its own processes check its overrides.
    """
    classes = settings_by_service()
    if service not in classes:
        known = {name.replace("_", "-") for name in SERVICES}
        if service in known and not any(c.section == service.replace("-", "_") for c in declared_settings()):
            return None
        return f"{service} has no settings per table; expected one of {', '.join(sorted(classes))}"
    try:
        _checked(classes[service], own)
    except ValidationError as error:
        return _described(service, classes[service], error)
    return None


def with_overrides(settings: SettingsT, own: Overrides) -> SettingsT:
    """Return the settings as they hold for a table. Raises `InvalidSetting` for overrides that are unknown or wrong."""
    if not own:
        return settings
    kind, service = type(settings), str(settings.section).replace("_", "-")
    try:
        checked = _checked(kind, own)
    except ValidationError as error:
        found = _described(service, kind, error)
        raise InvalidSetting(found, name=service, origin="the source of tables") from None
    return _merged(settings, checked)


class TableSettings(Generic[SettingsT]):
    """The settings of a service for each table. `own` returns the overrides of a base path. Used by one thread.

    While the overrides of a table stay equal, `of` returns the same object, so that a caller may compare by identity.
    """

    def __init__(self, settings: SettingsT, own: Callable[[str], Overrides]) -> None:
        self._settings = settings
        self._own = own
        self._made: dict[str, tuple[Overrides, SettingsT]] = {}

    def of(self, base_path: str) -> SettingsT:
        """Return the settings for the table at this canonical base path. Raises as `with_overrides` does."""
        own = self._own(base_path)
        if not own:
            self._made.pop(base_path, None)
            return self._settings
        known = self._made.get(base_path)
        if known is None or known[0] != own:
            known = self._made[base_path] = own, with_overrides(self._settings, own)
        return known[1]


def _names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in per_table_fields(model).items():
        nested = nested_model(field.annotation)
        if nested is None:
            yield f"{prefix}{name}"
        else:
            yield from _names(nested, f"{prefix}{name}.")


@functools.cache
def _model_of(model: type[BaseModel]) -> type[BaseModel]:
    """Return a model of the settings per table alone, each optional, with the constraints of their declarations."""
    fields: dict[str, Any] = {}
    for name, field in per_table_fields(model).items():
        nested = nested_model(field.annotation)
        own = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        kind = _model_of(nested) if nested is not None else own
        fields[name] = (kind, None)
    # Strict: text must not become a number. The API server has already checked the types.
    return create_model(f"{model.__name__}PerTable", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _checked(model: type[BaseModel], own: Any) -> BaseModel:
    return _model_of(model).model_validate(dict(own) if isinstance(own, Mapping) else own)


def _merged(settings: ModelT, checked: BaseModel) -> ModelT:
    update: dict[str, Any] = {}
    for name in checked.model_fields_set:
        value = getattr(checked, name)
        update[name] = _merged(getattr(settings, name), value) if isinstance(value, BaseModel) else value
    return settings.model_copy(update=update)


def _described(service: str, model: type[BaseModel], error: ValidationError) -> str:
    first: ErrorDetails = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == _UNKNOWN:
        names = per_table_names(model)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{service}.{name} is no setting per table; expected one of {', '.join(names)}{hint}"
    place = f"{service}.{name}" if name else service
    return f"{place} is {shortened(repr(first['input']))}; expected {expectation(first)}"
