"""The methods of both clients: each sends the request that an endpoint function returns."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

from studio.client import endpoints
from studio.client.endpoints import ApiRequest, PagedRequest
from studio.client.transports import AsyncTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound=Transport | AsyncTransport)

POLL_SECONDS = 0.5


class Resource(Generic[W]):
    def __init__(self, transport: W) -> None:
        self._transport = transport


class Method(Generic[P, T]):
    """A method that sends a request; the async client awaits it."""

    def __init__(self, call: Callable[P, ApiRequest[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    @overload
    def __get__(self, noun: Resource[Transport], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, noun: Resource[AsyncTransport], kind: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, noun: Resource[Any], kind: type) -> Callable[P, object]:
        def send(*args: P.args, **kwargs: P.kwargs) -> object:
            return noun._transport.send(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class ListMethod(Generic[P, T]):
    """A method that iterates over a list and fetches further pages on demand."""

    def __init__(self, call: Callable[P, PagedRequest[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    @overload
    def __get__(self, noun: Resource[Transport], kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self, noun: Resource[AsyncTransport], kind: type
    ) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, noun: Resource[Any], kind: type) -> Callable[P, object]:
        def send(*args: P.args, **kwargs: P.kwargs) -> object:
            return noun._transport.iterate(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class RunMethods(Resource[W]):
    submit = Method(endpoints.submit_run)
    list = ListMethod(endpoints.runs)
    get = Method(endpoints.run)
    change = Method(endpoints.change_run)
    delete = Method(endpoints.delete_run)
    cancel = Method(endpoints.cancel_run)
    keep = Method(endpoints.keep_run)
    pause = Method(endpoints.pause_run)
    resume = Method(endpoints.resume_run)
    retry = Method(endpoints.retry_run)
    move = Method(endpoints.move_run)
    again = Method(endpoints.rerun)
    metrics = Method(endpoints.metrics)
    artifacts = Method(endpoints.artifacts)
    report = Method(endpoints.run_report)
    trackers = Method(endpoints.trackers)
    track = Method(endpoints.track_run)
    retry_tracker = Method(endpoints.retry_tracker)
    stop_tracker = Method(endpoints.stop_tracker)
    exports = Method(endpoints.exports)
    export = Method(endpoints.export_run)
    delete_export = Method(endpoints.delete_export)
    push_export = Method(endpoints.push_export)
    pushes = Method(endpoints.pushes)


class TaskMethods(Resource[W]):
    get = Method(endpoints.task)


class Experiments(Resource[W]):
    create = Method(endpoints.create_experiment)
    list = ListMethod(endpoints.experiments)
    get = Method(endpoints.experiment)
    run = Method(endpoints.run_experiment)
    delete = Method(endpoints.delete_experiment)


class Datasets(Resource[W]):
    add = Method(endpoints.add_dataset)
    bring = Method(endpoints.import_dataset)
    list = ListMethod(endpoints.datasets)
    get = Method(endpoints.dataset)
    delete = Method(endpoints.delete_dataset)


class Models(Resource[W]):
    add = Method(endpoints.add_model)
    download = Method(endpoints.download_model)
    list = ListMethod(endpoints.models)
    get = Method(endpoints.model)


class Sweeps(Resource[W]):
    create = Method(endpoints.create_sweep)
    prospect = Method(endpoints.preview_sweep)
    list = ListMethod(endpoints.sweeps)
    get = Method(endpoints.sweep)
    stop = Method(endpoints.stop_sweep)


class Endpoints(Resource[W]):
    create = Method(endpoints.serve)
    list = Method(endpoints.served_endpoints)
    get = Method(endpoints.served_endpoint)
    start = Method(endpoints.start_endpoint)
    stop = Method(endpoints.stop_endpoint)
    delete = Method(endpoints.delete_endpoint)
    log = Method(endpoints.endpoint_log)


class StudioMethods(Resource[W]):
    """A studio on this machine or another one."""

    compare = Method(endpoints.compare)
    comparison_report = Method(endpoints.comparison_report)
    queue = Method(endpoints.queue)
    import_recipe = Method(endpoints.import_recipe)

    def __init__(self, transport: W) -> None:
        super().__init__(transport)
        self.experiments = Experiments(transport)
        self.datasets = Datasets(transport)
        self.models = Models(transport)
        self.sweeps = Sweeps(transport)
        self.endpoints = Endpoints(transport)
