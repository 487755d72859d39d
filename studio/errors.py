"""The errors that the studio raises on purpose, and their meanings.

StudioError
├── NotFoundError       nothing has that name
├── AccessError         the caller has no access
│   ├── UnauthorizedError      the caller is not signed in
│   ├── ForbiddenError         the caller lacks permission
│   └── TooManyRequestsError   the caller sent too many requests; retry later
├── ConflictError       it exists, but not in a state that allows this
│   └── StaleError      someone else changed it in the meantime
├── InvalidError        the input is invalid; a retry will not help
├── TooLargeError       the input exceeds a size limit
├── UnavailableError    a resource is missing now: a GPU, the hub, the training packages
│   ├── DiskFullError   the disk that holds the studio's data is full
│   └── FilesLostError  the files of active work were deleted
└── TrainingError       a run started and could not finish
"""


class StudioError(Exception):
    """An expected failure, with a message and a hint that users can act on."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        """The dotted name of the invalid field; empty if none."""


class NotFoundError(StudioError):
    code = "not_found"


class ConflictError(StudioError):
    code = "conflict"


class StaleError(ConflictError):
    code = "stale"


class InvalidError(StudioError):
    code = "invalid"


class TooLargeError(StudioError):
    code = "too_large"


class UnavailableError(StudioError):
    code = "unavailable"


class AccessError(StudioError):
    """A request was denied to its caller; never raised by a run."""


class UnauthorizedError(AccessError):
    code = "unauthorized"


class ForbiddenError(AccessError):
    code = "forbidden"


class TooManyRequestsError(AccessError):
    code = "too_many_requests"


class DiskFullError(UnavailableError):
    code = "disk_full"


class FilesLostError(UnavailableError):
    code = "files_lost"


class TrainingError(StudioError):
    """A run cannot continue. `code` is one of `studio.failure_codes`."""

    def __init__(self, code: str, message: str, *, hint: str = "", **facts: int) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.facts = facts
        """Figures that the suggested fixes are based on."""
