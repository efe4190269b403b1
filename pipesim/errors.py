"""What can go wrong for a user, as types; anything else that is raised is a bug of pipesim."""


class PipesimError(Exception):
    """Base of every error that is the input's fault; the command line prints it and exits with 2."""

    @property
    def headline(self) -> str:
        """First line of the message, for a list of several."""
        return (str(self).splitlines() or [""])[0].rstrip(":.")


class ScenarioError(PipesimError):
    """A scenario, preset or cost file says something that cannot be read or cannot be true.

    Parameters
    ----------
    message : str
        What was found and what is allowed.
    file : str, optional
        The file at fault.
    key : str, optional
        Dotted path of the key at fault, such as ``parallel.pipeline``.
    """

    def __init__(self, message: str, *, file: str | None = None, key: str | None = None) -> None:
        self.message = message
        self.file = file
        self.key = key
        super().__init__(": ".join(part for part in (file, key, message) if part))


class ScheduleError(PipesimError):
    """A schedule is malformed, or its shape (ranks, chunks, microbatches) breaks its constraints."""


class DeadlockError(ScheduleError):
    """No rank can go on: each one's next action waits for something that never comes."""


class InfeasibleError(PipesimError):
    """The question is well put and has no answer: nothing legal, or nothing that fits."""


class ExecutionError(PipesimError):
    """A real run could not start or go on; where a rank failed, the message names it and its action."""


class MissingPackageError(PipesimError):
    """What is asked for needs a package that is not there; the message says how to install it."""
