"""Attributes of events that are read from the trace until a program sets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, SupportsIndex, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Computed(Generic[T]):
    """An attribute that is computed on demand and can be set, as torch's can; a property cannot."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Take the function that computes the value, and its docstring."""
        self.compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, event: None, owner: type) -> Computed[T]: ...
    @overload
    def __get__(self, event: object, owner: type | None = None) -> T: ...
    def __get__(self, event: object | None, owner: type | None = None) -> T | Computed[T]:
        """The computed value, until a program sets one of its own on the event."""
        return self if event is None else self.compute(event)


class Kept(Computed[T]):
    """The same for a list that programs change in place: computed once for an event."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember where to keep it."""
        self.name = name

    @overload
    def __get__(self, event: None, owner: type) -> Computed[T]: ...
    @overload
    def __get__(self, event: object, owner: type | None = None) -> T: ...
    def __get__(self, event: Any, owner: type | None = None) -> T | Computed[T]:
        """The value, which is the event's own from now on."""
        if event is None:
            return self
        value = event.own[self.name] = self.compute(event)
        return value


class _Stores:
    """What is set on an object, in Python's own dictionary of it."""

    __slots__ = ("__dict__", "__weakref__")


# Not `event.__dict__`, which has torch's attributes too.
own_of: Callable[[Any], dict[str, Any]] = vars(_Stores)["__dict__"].__get__


class StoredAttributes(_Stores):
    """The attributes that torch's events store: here computed on demand, and an event's own once they are set."""

    __slots__ = ()

    _OF_TORCHS: ClassVar[tuple[str, ...]] = ()

    @property
    def own(self) -> dict[str, Any]:
        """What was set on this object, and the lists that were handed out."""
        return own_of(self)

    def _is_set(self, *names: str) -> bool:
        """Whether a program gave one of these attributes another value than the recorded one."""
        own = self.own
        for name in names:
            if name in own:
                recorded = getattr(type(self), name)
                if own[name] != (recorded.compute(self) if isinstance(recorded, Computed) else recorded):
                    return True
        return False

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The values of all attributes that torch's event stores, for `vars()`, and what was set on this one."""
        own = self.own
        for name in self._OF_TORCHS:
            if name not in own:
                own[name] = getattr(self, name)
        return own

    def _changes(self) -> dict[str, Any]:
        """What was set on it, without what is as it would be computed."""
        return {
            name: value
            for name, value in self.own.items()
            if not hasattr(type(self), name) or self._is_set(name)
        }

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle as what it is made from, with what was set on it."""
        return type(self), self._made_from(), self._changes()

    def __setstate__(self, changes: dict[str, Any]) -> None:
        """Take over what was set on the event that was pickled."""
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _made_from(self) -> tuple[Any, ...]:
        """The arguments that make it."""
        return ()
