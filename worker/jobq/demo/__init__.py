"""`jobq demo`: the queue at work on real files, with everything that can go wrong beside them."""

from jobq.demo.handlers import app

__all__ = ["app"]
