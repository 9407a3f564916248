"""A mixed load of many clients that goes on until standard input ends; prints what failed at the application.

Usage: rolling.py URI CLIENTS

Each line on standard input is answered once every client has done some more operations since.
"""

import json
import random
import sys
import threading
import time

import pymongo
from pymongo import MongoClient

MORE = 6

stopped = threading.Event()
counts = []
errors = []


def within(session, users, number):
    users.insert_one({"_id": f"t{number}", "email": f"t{number}@x", "n": 0}, session=session)
    users.update_one({"_id": f"t{number}"}, {"$inc": {"n": 1}}, session=session)


def operations(client, worker):
    users = client.rolling.users
    sequence = 0
    while True:
        sequence += 1
        name = f"{worker}-{sequence}"
        yield "insert", lambda: users.insert_one({"_id": name, "email": f"{name}@x", "worker": worker})
        yield "find", lambda: users.find_one({"_id": name})["email"]
        yield "set", lambda: users.update_one({"_id": name}, {"$set": {"email": f"{name}@y"}})
        yield "inc", lambda: users.find_one_and_update({"_id": name}, {"$inc": {"n": 1}})
        yield "insertMany", lambda: client.rolling.log.insert_many([{"worker": worker, "n": n} for n in range(5)])
        yield "cursor", lambda: sum(1 for _ in client.rolling.log.find({"worker": worker}, batch_size=3).limit(12))
        yield "count", lambda: client.rolling.log.count_documents({"worker": worker})
        if sequence % 4 == 0:
            def transaction():
                with client.start_session() as session:
                    session.with_transaction(lambda session: within(session, users, name))

            yield "transaction", transaction
        yield "delete", lambda: users.delete_one({"_id": name})


def work(uri, worker):
    client = MongoClient(uri, retryWrites=True, heartbeatFrequencyMS=10_000)
    for kind, operation in operations(client, worker):
        if stopped.is_set():
            return
        begun = time.monotonic()
        try:
            operation()
        except Exception as error:  # whatever reaches the application counts
            errors.append(f"{kind} after {time.monotonic() - begun:.1f} s: {type(error).__name__} {error}"[:600])
        counts[worker] += 1
        time.sleep(random.random() / 20)


def main(uri, clients):
    counts.extend([0] * clients)
    threads = [threading.Thread(target=work, args=(uri, worker)) for worker in range(clients)]
    for thread in threads:
        thread.start()
    print("running", flush=True)
    for line in sys.stdin:
        goal = [count + MORE for count in counts]
        while any(count < enough for count, enough in zip(counts, goal)):
            time.sleep(0.02)
        print(line.strip(), flush=True)
    stopped.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"pymongo": pymongo.version, "operations": sum(counts), "errors": errors}))


main(sys.argv[1], int(sys.argv[2]))
