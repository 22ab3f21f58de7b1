"""Long work as jobs on disk, each in its own process.

>>> from npu_tools.jobs import Jobs
"""

from npu_tools.jobs.records import ENDED, JobView, Progress
from npu_tools.jobs.store import MAX_WAIT_S, Jobs

__all__ = ["ENDED", "MAX_WAIT_S", "JobView", "Jobs", "Progress"]
