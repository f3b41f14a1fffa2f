"""What a command exits with."""

SUCCESS = 0
ANSWER_IS_NO = 1
"""An invalid schedule, or none in the time given; processes that were lost."""
BAD_INPUT = 2
INTERRUPTED = 130
"""By Ctrl-C."""
