"""What pymongo does every day, on unprotected collections; prints what it saw, so that two runs can be compared.

Usage: transparent.py URI DATABASE [STEP...]
"""

import sys
import threading

import pymongo
from bson import SON
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne, WriteConcern, read_concern
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure


def crud(db, _uri):
    things = db.things
    things.insert_many([{"_id": n, "n": n, "text": "x" * 100} for n in range(3000)])
    yield "count", things.count_documents({})
    yield "sum", sum(thing["n"] for thing in things.find({}, batch_size=70))
    yield "updated", things.update_many({"n": {"$lt": 100}}, {"$set": {"small": True}}).modified_count
    yield "found", things.find_one_and_update({"_id": 5}, {"$inc": {"n": 1}}, return_document=True)["n"]
    yield "deleted", things.delete_many({"small": True}).deleted_count
    yield "upserted", things.replace_one({"_id": "new"}, {"a": 1}, upsert=True).upserted_id
    yield "distinct", len(things.distinct("n"))
    pipeline = [{"$match": {"n": {"$gte": 2990}}}, {"$sort": {"n": -1}}, {"$limit": 3}, {"$project": {"n": 1}}]
    yield "aggregated", list(things.aggregate(pipeline))
    list(things.aggregate([{"$limit": 10}, {"$out": "copies"}]))
    yield "copies", db.copies.count_documents({})
    things.create_index("n", unique=True)
    yield "indexes", sorted(things.index_information())
    try:
        things.insert_one({"n": 2990})
    except DuplicateKeyError as error:
        yield "duplicate", (error.code, error.details["keyPattern"], error.details["keyValue"])
    requests = [InsertOne({"_id": "b", "n": -5}), UpdateOne({"_id": "b"}, {"$set": {"x": 1}}), DeleteOne({"_id": "b"})]
    yield "bulk", things.bulk_write(requests).bulk_api_result["nRemoved"]
    try:
        things.bulk_write([InsertOne({"_id": 200}), InsertOne({"_id": "c", "n": -1})], ordered=False)
    except BulkWriteError as error:
        yield "bulk error", (error.details["nInserted"], [e["code"] for e in error.details["writeErrors"]])
    yield "collections", sorted(db.list_collection_names())
    yield "explained", "queryPlanner" in db.command("explain", SON(find="things", filter={}))
    try:
        db.command("unheardOf")
    except OperationFailure as error:
        yield "unknown command", (error.code, error.details["errmsg"])


def large(db, _uri):
    blob = bytes(range(256)) * 60_000
    db.large.insert_many([{"_id": n, "blob": blob} for n in range(5)])
    yield "large", sum(len(document["blob"]) for document in db.large.find())


def unacknowledged(db, _uri):
    silent = db.get_collection("silent", write_concern=WriteConcern(w=0))
    with db.client.start_session():
        for n in range(200):
            silent.insert_one({"_id": n})
    while db.silent.count_documents({}) < 200:
        pass
    yield "unacknowledged", db.silent.count_documents({})


def sessions(db, _uri):
    things = db.session_things
    with db.client.start_session(causal_consistency=True) as session:
        things.insert_one({"_id": 1}, session=session)
        concern = read_concern.ReadConcern("majority")
        yield "causal", things.with_options(read_concern=concern).find_one({"_id": 1}, session=session)
    with db.client.start_session() as session:
        with session.start_transaction():
            things.insert_one({"_id": 2}, session=session)
            things.update_one({"_id": 1}, {"$set": {"x": 1}}, session=session)
            seen_outside = things.find_one({"_id": 2})
        yield "committed", (seen_outside, things.find_one({"_id": 2}))
        session.start_transaction()
        things.insert_one({"_id": 3}, session=session)
        session.abort_transaction()
        yield "aborted", things.find_one({"_id": 3})
        session.with_transaction(lambda session: things.insert_one({"_id": 4}, session=session))
        yield "with_transaction", things.find_one({"_id": 4})


def retries(db, uri):
    """A write and a read whose connection breaks are tried again by the driver."""
    client = MongoClient(uri, appname="retries", retryWrites=True)
    for command, work in (
        ("insert", lambda things: things.insert_one({"_id": 1}).inserted_id),
        ("find", lambda things: things.find_one({"_id": 1})),
    ):
        data = {"failCommands": [command], "closeConnection": True, "appName": "retries"}
        db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        yield "retried " + command, work(client[db.name].retried)
    client.close()


def change_stream(db, _uri):
    with db.watched.watch(full_document="updateLookup", max_await_time_ms=500) as stream:
        threading.Thread(target=db.watched.insert_one, args=({"_id": 1, "x": 2},)).start()
        yield "changed", next(stream)["fullDocument"]


def compressed(db, uri):
    client = MongoClient(uri, compressors="zlib")
    things = client[db.name].compressed
    things.insert_many([{"_id": n, "text": "abc" * 1000} for n in range(500)])
    yield "compressed", sum(len(thing["text"]) for thing in things.find())
    client.close()


def main():
    uri, name, *wanted = sys.argv[1:]
    client = MongoClient(uri)
    client.drop_database(name)
    for step in (crud, large, unacknowledged, sessions, compressed, retries, change_stream):
        if step.__name__ in (wanted or [step.__name__]):
            for what, seen in step(client[name], uri):
                print(what, seen)
    client.drop_database(name)


main()
