"""Run by `yoyo apply` after the numbered migrations: load functions, triggers and views."""

from yoyo import step

from jobq.migrate import apply_sources

# The loader makes its own transaction, which it may have to repeat.
__transactional__ = False

step(apply_sources)
