"""Alembic's entry: runs the migrations on the connection, and in the transaction, that `Database.upgrade` opened.

A migration is written by hand under `versions/` and names the database's own types; a test holds tables and migrations
together (`compare_metadata` finds no difference).
"""

from alembic import context

from service.store.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
