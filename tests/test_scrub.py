"""What the scrubbing script takes out of an export, and what it must leave."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from benchmarks.scrub_trace import scrub


def test_who_and_where_go_and_times_stay() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("""
            CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
            INSERT INTO META_DATA_CAPTURE VALUES
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TOKEN=secret'), ('PROCESS_0:USER_NAME', 'me'),
                ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node'),
                ('CUDA_FLUSH_ON_CUDA_PROFILER_STOP', 'false');
            CREATE TABLE PROCESSES (globalPid INTEGER, name TEXT);
            INSERT INTO PROCESSES VALUES (1, '/home/me/secret/python');
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            INSERT INTO StringIds VALUES (1, 'layer<a/b>'), (2, 'open /home/me/x.py'), (3, '/home/me/lib.so');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (32, 64);
        """)

        scrub(connection)

        def rows(table: str) -> list[tuple[object, ...]]:
            return connection.execute(f"SELECT * FROM {table}").fetchall()

        assert rows("META_DATA_CAPTURE") == [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", ""),
            ("PROCESS_0:USER_NAME", ""),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
            ("CUDA_FLUSH_ON_CUDA_PROFILER_STOP", "false"),
        ]
        assert rows("PROCESSES") == []
        assert rows("StringIds") == [(1, "layer<a/b>"), (2, "open x.py"), (3, "lib.so")]
        assert rows("CUPTI_ACTIVITY_KIND_KERNEL") == [(32, 64)]
