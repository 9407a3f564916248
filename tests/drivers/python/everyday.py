"""Writes to a protected collection; prints what the driver says. Every driver's script does the same."""
import sys

from pymongo import MongoClient
from pymongo.errors import BulkWriteError, DuplicateKeyError

client = MongoClient(sys.argv[1])
users = client[sys.argv[2]].users


def refused(write):
    try:
        write()
        print("not refused")
    except BulkWriteError as error:
        positions = ",".join(str(one["index"]) for one in error.details["writeErrors"])
        print("refused", error.details["writeErrors"][0]["code"], "at", positions, "inserted", error.details["nInserted"])
    except DuplicateKeyError as error:
        print("refused", error.code, "email_1 dup key" in str(error))


users.insert_one({"_id": 1, "email": "a@x"})
refused(lambda: users.insert_one({"_id": 2, "email": "a@x"}))
many = [{"_id": 3, "email": "b@x"}, {"_id": 4, "email": "a@x"}, {"_id": 5, "email": "c@x"}]
refused(lambda: users.insert_many(many, ordered=False))
refused(lambda: users.update_one({"_id": 3}, {"$set": {"email": "c@x"}}))
print("updated", users.update_one({"_id": 3}, {"$set": {"email": "d@x"}}).modified_count)
print("before", users.find_one_and_update({"_id": 3}, {"$set": {"email": "e@x"}})["email"])
users.replace_one({"_id": 6}, {"email": "f@x"}, upsert=True)
print("deleted", users.delete_one({"email": "a@x"}).deleted_count)
users.insert_one({"_id": 7, "email": "a@x"})
print(" ".join(user["email"] for user in users.find().sort("_id", 1)))
