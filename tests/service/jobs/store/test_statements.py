"""Statements that are made once: threads that first use them together all send the same text."""

import json
import subprocess
import sys

PROGRAM = """
import importlib, json, sys, threading
from sqlalchemy import Executable
from sqlalchemy.dialects import postgresql, sqlite

sys.setswitchinterval(1e-6)
texts = {}

def compiled_by_all(statement, dialect):
    found, together = [], threading.Barrier(16)
    def compiled():
        together.wait()
        try:
            found.append(str(statement.compile(dialect=dialect)))
        except Exception as error:
            found.append(repr(error))
    threads = [threading.Thread(target=compiled) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(set(found))

store = ("claiming", "queue", "queue_health", "repository")
for name in (*(f"service.jobs.store.{name}" for name in store), "service.web.auth"):
    module = importlib.import_module(name)
    for key, value in list(vars(module).items()):
        if isinstance(value, Executable):
            for dialect in (postgresql.dialect(), sqlite.dialect()):
                texts[f"{name}.{key} {dialect.name}"] = compiled_by_all(value, dialect)
print(json.dumps(texts))
"""


def test_threads_that_compile_a_statement_together_make_one_text() -> None:
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    texts = json.loads(made.stdout)
    assert {name.split()[0] for name in texts} >= {
        "service.jobs.store.claiming.CLAIM",
        "service.jobs.store.repository._JOB",
        "service.web.auth._KEY",
    }
    assert {name: found for name, found in texts.items() if len(found) != 1} == {}
