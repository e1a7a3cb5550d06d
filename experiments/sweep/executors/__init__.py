"""Where jobs are decoded: in this process, in others, on a Ray cluster."""

from experiments.sweep.executors.chosen import begin, open_executor
from experiments.sweep.executors.contract import Executor, Open, Tell

__all__ = ["Executor", "Open", "Tell", "begin", "open_executor"]
