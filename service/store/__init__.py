"""Where studies are kept: SQL is the truth. SQLite by default, PostgreSQL where it grows.

`tables` has the mappings, `migrations` their history, `database` the unit of work; `study_rows` and `trial_rows` read
and write for the facade (`service.studies`), `attempts` for the dispatcher; `log_intake` and `trial_events` take in a
job's log. No function here commits: `Database.session()` does.
"""

from service.store.database import Database

__all__ = ["Database"]
