"""Runs files of pymongo's own test suite, and prints one line of JSON for each test: its name, its outcome, why.

Arguments: the folder that holds `test`, then pytest's own. The servers are in DB_IP and DB_PORT, as the suite wants them.
PUBLISHED_LIMIT is the number of seconds that one test may take. PUBLISHED_CREATES has collections created before they are filled.
PUBLISHED_APPLICATION is the name with which the suite connects; its fail points hold for this application only.
"""

import json
import os
import signal
import sys

import pytest

LIMIT = float(os.environ["PUBLISHED_LIMIT"])


class TooLong(BaseException):
    """A test that takes too long. No test expects it."""


def too_long(_signal, _frame):
    raise TooLong(f"longer than {LIMIT:.0f} s")


class Lines:
    """Prints the outcome of each test, and ends one that hangs."""

    def __init__(self):
        self.worst = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        signal.signal(signal.SIGALRM, too_long)
        signal.setitimer(signal.ITIMER_REAL, LIMIT, LIMIT)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        outcome = self.worst.pop(item.nodeid, ("skipped", "", 0.0))
        test = item.nodeid.removeprefix("test/")
        line = {"test": test, "outcome": outcome[0], "why": outcome[1], "seconds": outcome[2]}
        print("outcome " + json.dumps(line), flush=True)

    def pytest_runtest_logreport(self, report):
        before = self.worst.get(report.nodeid, ("passed", "", 0.0))
        seconds = before[2] + report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
            self.worst[report.nodeid] = ("failed", why[:600], seconds)
        elif report.skipped and before[0] == "passed":
            self.worst[report.nodeid] = ("skipped", "", seconds)
        else:
            self.worst[report.nodeid] = (before[0], before[1], seconds)


def create_before_filling():
    """Has the unified tests create each collection before they insert its first documents. An option that changes nothing does it."""
    from test.unified_format import UnifiedSpecTestMixinV1

    fill = UnifiedSpecTestMixinV1.insert_initial_data

    def create_and_fill(self, initial_data):
        for collection in initial_data:
            collection.setdefault("createOptions", {"capped": False})
        return fill(self, initial_data)

    UnifiedSpecTestMixinV1.insert_initial_data = create_and_fill


def fail_only_for(application):
    """Names the application, and restricts fail points to it. Without this, commands of Keyward itself would use them up."""
    from pymongo.synchronous.database import Database
    from pymongo.synchronous.mongo_client import MongoClient

    connect, run = MongoClient.__init__, Database.command

    def connect_as(self, *args, **options):
        if not any(option.lower() == "appname" for option in options):
            options["appname"] = application
        connect(self, *args, **options)

    def run_for(self, command, *args, **options):
        if isinstance(command, dict) and "configureFailPoint" in command and "data" in command:
            command = {**command, "data": {"appName": application, **command["data"]}}
        return run(self, command, *args, **options)

    MongoClient.__init__, Database.command = connect_as, run_for


suite = sys.argv[1]
os.chdir(suite)
sys.path.insert(0, suite)
if os.environ.get("PUBLISHED_CREATES"):
    create_before_filling()
if application := os.environ.get("PUBLISHED_APPLICATION"):
    fail_only_for(application)
quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", suite]
status = pytest.main([*quiet, *sys.argv[2:]], plugins=[Lines()])
# 1: some failed, which the lines say. Anything else: they say too little.
sys.exit(0 if status in (0, 1) else int(status))
