"""A session as a decorator: of functions, generators, coroutines and asynchronous generators."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any


def decorated(session: contextlib.AbstractContextManager[Any], function: Callable[..., Any]) -> Any:
    """Wrap a function in the session; a coroutine or generator is profiled until it has finished."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with session:
                return await function(*args, **kwargs)

        return coroutine
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with session:
                async with contextlib.aclosing(function(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

        return async_generator
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with session:
                return (yield from function(*args, **kwargs))

        return generator

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with session:
            return function(*args, **kwargs)

    return call
