"""What an application does with pymongo, on a sharded collection: prints OK if all of it worked."""
import sys

import pymongo
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteError
from pymongo.server_api import ServerApi


def refused(error, call):
    try:
        call()
    except error as refusal:
        return refusal
    raise AssertionError(f"expected {error.__name__}")


def move_chunk(namespace, find, to):
    """A shard takes part in one move at a time, and others move theirs, too."""
    while True:
        try:
            return client.admin.command("moveChunk", namespace, find=find, to=to)
        except OperationFailure as busy:
            if busy.code != 117:
                raise


client = pymongo.MongoClient(sys.argv[1])
assert client.topology_description.topology_type_name in ("Unknown", "Sharded")
client.admin.command("ping")
assert client.topology_description.topology_type_name == "Sharded"
client.drop_database("py")
admin = client.admin
admin.command("enableSharding", "py", primaryShard="shard0")
admin.command("shardCollection", "py.users", key={"region": 1})
admin.command("split", "py.users", middle={"region": "m"})
move_chunk("py.users", {"region": "z"}, "shard1")
users = client.py.users

users.insert_many([{"_id": n, "region": "abcxyz"[n % 6], "n": n} for n in range(60)])
assert users.count_documents({}) == users.estimated_document_count() == 60
assert [user["n"] for user in users.find(batch_size=7).sort("n", -1)] == list(range(59, -1, -1))
assert [user["n"] for user in users.find().sort("n", 1).skip(5).limit(10)] == list(range(5, 15))
assert sorted(users.distinct("region")) == list("abcxyz")
assert users.update_many({}, {"$set": {"x": 1}}).modified_count == 60
assert users.update_one({"_id": 5}, {"$set": {"x": 2}}).modified_count == 1
assert refused(WriteError, lambda: users.update_one({"n": 5}, {"$set": {"x": 2}})).code == 72
assert refused(DuplicateKeyError, lambda: users.insert_one({"_id": 0, "region": "a"})).details["keyValue"] == {"_id": 0}
bulk = refused(BulkWriteError, lambda: users.insert_many(
    [{"_id": 100, "region": "a"}, {"_id": 1, "region": "b"}, {"_id": 101, "region": "z"}], ordered=False))
assert [error["index"] for error in bulk.details["writeErrors"]] == [1] and bulk.details["nInserted"] == 2
assert refused(OperationFailure, lambda: users.create_index("email", unique=True)).code == 67
assert users.find_one_and_update({"region": "a", "_id": 0}, {"$set": {"region": "z"}})["region"] == "a"
assert users.find_one({"_id": 0})["region"] == "z"
assert [group["n"] for group in users.aggregate([
    {"$match": {"_id": {"$lt": 60}}}, {"$group": {"_id": "$region", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}},
])] == [9, 10, 10, 10, 10, 11]

with client.start_session() as session:
    with session.start_transaction():
        users.insert_one({"_id": "t1", "region": "a"}, session=session)
        users.insert_one({"_id": "t2", "region": "z"}, session=session)
        assert users.count_documents({"_id": {"$in": ["t1", "t2"]}}, session=session) == 2
        assert users.count_documents({"_id": {"$in": ["t1", "t2"]}}) == 0
assert users.count_documents({"_id": {"$in": ["t1", "t2"]}}) == 2
with client.start_session(causal_consistency=True) as session:
    users.insert_one({"_id": "causal", "region": "b"}, session=session)
    assert users.find_one({"_id": "causal"}, session=session)
with users.watch() as changes:
    users.insert_one({"_id": "watched", "region": "y"})
    assert changes.next()["documentKey"]["_id"] == "watched"

strict = pymongo.MongoClient(sys.argv[1], server_api=ServerApi("1", strict=True, deprecation_errors=True))
strict.py.users.insert_many([{"_id": f"s{n}", "region": "az"[n % 2]} for n in range(10)])
with strict.start_session() as session, session.start_transaction():
    strict.py.users.update_one({"_id": "s0", "region": "a"}, {"$set": {"region": "z"}}, session=session)
assert strict.py.users.count_documents({"_id": {"$in": [f"s{n}" for n in range(10)]}, "region": "z"}) == 6
assert refused(OperationFailure, lambda: strict.py.command("distinct", "users", key="region")).code == 323
client.drop_database("py")
print("OK")
