-- The read model. Nothing in it is truth: the console makes it anew at each start. {services}: the actions of table services.
CREATE TABLE tables (
  base_path TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, uid TEXT NOT NULL, name TEXT NOT NULL, folder TEXT NOT NULL,
  type TEXT, version INTEGER, mode TEXT NOT NULL, verdict TEXT NOT NULL, urgency INTEGER NOT NULL, state TEXT, sequence INTEGER,
  size_bytes INTEGER, file_groups INTEGER, small_files INTEGER, log_files INTEGER, log_bytes INTEGER, pending INTEGER NOT NULL,
  due INTEGER NOT NULL, findings INTEGER NOT NULL, last_write_s REAL, tags TEXT NOT NULL,
  reserved_bytes INTEGER NOT NULL DEFAULT 0, examined_s REAL NOT NULL);
CREATE INDEX tables_by_uid ON tables (uid);
CREATE INDEX tables_by_pending ON tables (pending) WHERE pending > 0;
CREATE INDEX tables_by_findings ON tables (findings) WHERE findings > 0;
CREATE INDEX tables_by_due ON tables (due) WHERE due > 0;
CREATE INDEX tables_by_urgency ON tables (urgency, name, base_path);
CREATE INDEX tables_by_size ON tables (size_bytes IS NULL, size_bytes DESC, urgency, name, base_path);
CREATE INDEX tables_by_write ON tables (last_write_s IS NULL, last_write_s DESC, urgency, name, base_path);
CREATE INDEX tables_by_verdict ON tables (verdict);
CREATE INDEX tables_by_folder ON tables (folder, verdict);
CREATE INDEX tables_by_kind ON tables (type, version, mode);
CREATE TABLE lags (uid TEXT PRIMARY KEY, lag_s REAL NOT NULL, step INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (base_path TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE parts (
  base_path TEXT NOT NULL, part TEXT NOT NULL, number INTEGER NOT NULL, since_s REAL, ends INTEGER NOT NULL,
  examined_s REAL NOT NULL, document TEXT NOT NULL, score REAL, PRIMARY KEY (base_path, part, number)) WITHOUT ROWID;
CREATE INDEX parts_by_age ON parts (part, ends, since_s);
CREATE INDEX parts_by_score ON parts (score DESC, base_path, number) WHERE part = 'due';
CREATE TABLE steps (
  uid TEXT NOT NULL, sequence INTEGER NOT NULL, instant TEXT NOT NULL, action TEXT NOT NULL, operation TEXT, from_state TEXT,
  to_state TEXT NOT NULL, time_s REAL NOT NULL, requested_s REAL NOT NULL, completed_s REAL, writer TEXT NOT NULL, undone TEXT,
  rows_inserted INTEGER, rows_updated INTEGER, rows_deleted INTEGER, files_added INTEGER NOT NULL, files_deleted INTEGER NOT NULL,
  bytes_added INTEGER NOT NULL, partitions TEXT NOT NULL, timeline_file TEXT NOT NULL,
  groups_replaced INTEGER NOT NULL, PRIMARY KEY (uid, sequence)) WITHOUT ROWID;
CREATE INDEX steps_by_time ON steps (time_s);
CREATE INDEX steps_by_instant ON steps (uid, instant);
CREATE INDEX steps_of_services ON steps (time_s, uid) WHERE to_state IN ('completed', 'rolledback') AND action IN ({services});
CREATE INDEX steps_undone ON steps (undone, uid) WHERE undone IS NOT NULL;
CREATE INDEX steps_undoing ON steps (time_s) WHERE action = 'rollback' AND to_state = 'completed';
CREATE TABLE writers (
  writer TEXT NOT NULL, uid TEXT NOT NULL, day INTEGER NOT NULL, steps INTEGER NOT NULL, bytes INTEGER NOT NULL,
  rows INTEGER NOT NULL, last_s REAL NOT NULL, PRIMARY KEY (writer, uid, day)) WITHOUT ROWID;
CREATE TABLE hours (
  hour INTEGER NOT NULL, action TEXT NOT NULL, steps INTEGER NOT NULL, bytes INTEGER NOT NULL, rows INTEGER NOT NULL,
  PRIMARY KEY (hour, action)) WITHOUT ROWID;
CREATE TABLE table_hours (
  uid TEXT NOT NULL, hour INTEGER NOT NULL, action TEXT NOT NULL, steps INTEGER NOT NULL, PRIMARY KEY (uid, hour, action)
) WITHOUT ROWID;
CREATE TRIGGER count_steps AFTER INSERT ON steps WHEN new.to_state = 'completed' BEGIN
  INSERT INTO hours VALUES (CAST(new.time_s / 3600 AS INTEGER), new.action, 1, new.bytes_added,
    COALESCE(new.rows_inserted, 0) + COALESCE(new.rows_updated, 0) + COALESCE(new.rows_deleted, 0))
    ON CONFLICT DO UPDATE SET steps = steps + 1, bytes = bytes + excluded.bytes, rows = rows + excluded.rows;
  INSERT INTO table_hours VALUES (new.uid, CAST(new.time_s / 3600 AS INTEGER), new.action, 1)
    ON CONFLICT DO UPDATE SET steps = steps + 1;
END;
CREATE TRIGGER count_writers AFTER INSERT ON steps
WHEN new.to_state = 'completed' AND new.action IN ('commit', 'deltacommit', 'replacecommit') BEGIN
  INSERT INTO writers VALUES (new.writer, new.uid, CAST(new.time_s / 86400 AS INTEGER), 1, new.bytes_added,
    COALESCE(new.rows_inserted, 0) + COALESCE(new.rows_updated, 0) + COALESCE(new.rows_deleted, 0), new.time_s)
    ON CONFLICT DO UPDATE SET steps = steps + 1, bytes = bytes + excluded.bytes, rows = rows + excluded.rows,
      last_s = max(last_s, excluded.last_s);
END;
CREATE TABLE open_writes (
  uid TEXT NOT NULL, instant TEXT NOT NULL, sequence INTEGER NOT NULL, time_s REAL NOT NULL,
  PRIMARY KEY (uid, instant)) WITHOUT ROWID;
CREATE INDEX open_writes_by_time ON open_writes (time_s);
CREATE TRIGGER begin_writes AFTER INSERT ON steps
WHEN new.to_state = 'inflight' AND new.action IN ('commit', 'deltacommit', 'replacecommit')
  AND NOT EXISTS (SELECT 1 FROM steps l WHERE l.uid = new.uid AND l.instant = new.instant AND +l.sequence > new.sequence)
  AND NOT EXISTS (SELECT 1 FROM steps r WHERE +r.uid = new.uid AND r.undone = new.instant AND r.to_state = 'completed') BEGIN
  INSERT INTO open_writes VALUES (new.uid, new.instant, new.sequence, new.time_s)
    ON CONFLICT DO UPDATE SET sequence = excluded.sequence, time_s = excluded.time_s;
END;
CREATE TRIGGER end_writes AFTER INSERT ON steps BEGIN
  DELETE FROM open_writes WHERE uid = new.uid
    AND (instant = new.instant AND sequence < new.sequence OR instant = new.undone AND new.to_state = 'completed');
END;
CREATE TABLE sizes (
  base_path TEXT NOT NULL, at_s REAL NOT NULL, size_bytes INTEGER NOT NULL, file_groups INTEGER NOT NULL,
  log_bytes INTEGER NOT NULL,
  PRIMARY KEY (base_path, at_s)) WITHOUT ROWID;
CREATE TABLE shards (
  service TEXT NOT NULL, shard INTEGER NOT NULL, fleet TEXT NOT NULL, time_s REAL NOT NULL, document TEXT NOT NULL,
  PRIMARY KEY (service, fleet, shard)) WITHOUT ROWID;
CREATE TABLE events (
  id TEXT PRIMARY KEY, uid TEXT NOT NULL, base_path TEXT NOT NULL, kind TEXT NOT NULL, what TEXT NOT NULL, instant TEXT NOT NULL,
  text TEXT NOT NULL, time_s REAL NOT NULL, document TEXT NOT NULL);
CREATE INDEX events_by_time ON events (time_s);
CREATE INDEX events_of_jobs ON events (instant, uid, time_s) WHERE kind = 'job';
