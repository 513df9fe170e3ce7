"""Rollback of dead writers: a table service without plans."""
