"""State of Hudi-written tables, from timeline files and a listing, without a table log (format reference 4, 7, 11, 16.3)."""

from tideline_table.hudi_written.state import hudi_written_state, visible_instants
