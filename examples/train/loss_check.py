"""The rule that makes the example a test: every loss must be the single-process run's."""

import math

# (last step, largest relative difference). Rounding differs between the two runs, and training
# amplifies it; a wrong, missing or doubled gradient is off by more than 1e-3 at once.
LIMITS = ((6, 2e-6), (20, 1e-4), (math.inf, 1e-3))


class LossMismatch(Exception):
    """A loss that the single-process run did not have; the text names the step."""


def limit_at(step):
    return next(limit for last, limit in LIMITS if step <= last)


def difference(loss, reference):
    """The relative difference; infinite where either loss is no number."""
    if not (math.isfinite(loss) and math.isfinite(reference)):
        return math.inf
    return abs(loss - reference) / abs(reference)


def check(step, loss, reference):
    """Returns the relative difference at a step, counted from 1, or raises LossMismatch."""
    off = difference(loss, reference)
    if off > limit_at(step):
        raise LossMismatch(f"step {step}: the loss is {loss:.9g}, but the single-process run of "
                           f"the same batch has {reference:.9g}: they differ by {off:.1e} of it, "
                           f"and {limit_at(step):.0e} is allowed")
    return off
