"""Every error the studio raises on purpose, and what each one means.

StudioError
├── NotFoundError       nothing by that name
├── AccessError         it is not for whoever asks
│   ├── UnknownPersonError  nobody has said who that is
│   ├── ForbiddenError      they may not do this
│   └── TooManyError        they asked too often; later it will be answered
├── ConflictError       it exists, but not in a state that allows this
│   └── StaleError      it was changed by somebody else meanwhile
├── InvalidError        the input cannot be accepted, and never will be
├── TooLargeError       the input is bigger than the studio takes
├── UnavailableError    a resource is missing now: a GPU, the hub, the training packages
│   ├── DiskFullError   there is no room left where the studio keeps its data
│   └── FilesLostError  the files of work that goes on were deleted
└── TrainingError       a run began and could not finish
"""


class StudioError(Exception):
    """An expected failure, told in words a user can act on."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        """The dotted name of the field at fault, or nothing."""


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
    """A refusal of a person, and of nothing that a run does."""


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
    """A run that cannot go on. `code` is one of `studio.failure_codes`."""

    def __init__(self, code: str, message: str, *, hint: str = "", **facts: int) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.facts = facts
        """Numbers that a repair can go by."""
