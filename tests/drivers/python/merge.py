"""Merges into a protected collection, whose constraint is on `email`; the URI names the database."""

import sys

from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure

with MongoClient(sys.argv[1]) as client:
    database = client.get_default_database()
    database.source.insert_many([{"_id": 1, "email": "a"}, {"_id": 2, "email": "b"}])
    assert list(database.source.aggregate([{"$merge": {"into": "users", "on": "email"}}])) == []
    merged = database.users.count_documents({})
    taken = [{"$set": {"email": "a"}}, {"$merge": "users"}]
    source = database.source.with_options(write_concern=WriteConcern("majority"))
    try:
        with client.start_session() as session:
            list(source.aggregate(taken, session=session, comment="taken"))
    except OperationFailure as error:
        print(f"{merged} merged, {error.code}")
