"""pymongo's MongoClient.bulk_write on a protected collection, `users`, unique by `email`.

Usage: bulk_write.py URI DATABASE
"""

import sys

from pymongo import DeleteMany, DeleteOne, InsertOne, MongoClient, ReplaceOne, UpdateMany, UpdateOne, WriteConcern
from pymongo.errors import ClientBulkWriteException
from pymongo.hello import Hello

# The command is there from this wire version on, and only then does the driver send it.
Hello.max_wire_version = property(lambda self: 25)


def main(uri, database):
    client = MongoClient(uri)
    users, orders = f"{database}.users", f"{database}.orders"
    result = client.bulk_write(
        [
            InsertOne({"_id": 1, "region": "a", "email": "1@x"}, namespace=users),
            InsertOne({"_id": 2, "region": "z", "email": "2@x"}, namespace=users),
            InsertOne({"_id": 1}, namespace=orders),
            UpdateOne({"_id": 1}, {"$set": {"email": "one@x"}}, namespace=users),
            ReplaceOne({"_id": 2, "region": "z"}, {"region": "z", "email": "two@x"}, namespace=users),
            UpdateOne({"_id": 3, "region": "a"}, {"$set": {"email": "3@x"}}, upsert=True, namespace=users),
            DeleteOne({"_id": 1}, namespace=orders),
        ],
        verbose_results=True,
    )
    assert (result.inserted_count, result.modified_count, result.upserted_count, result.deleted_count) == (3, 2, 1, 1)
    assert result.insert_results[1].inserted_id == 2
    assert result.update_results[5].upserted_id == 3
    try:
        client.bulk_write(
            [
                InsertOne({"_id": 4, "region": "a", "email": "one@x"}, namespace=users),
                InsertOne({"_id": 5, "region": "z", "email": "5@x"}, namespace=users),
                UpdateMany({"region": "z"}, {"$set": {"seen": True}}, namespace=users),
            ],
            ordered=False,
        )
        raise AssertionError("no duplicate")
    except ClientBulkWriteException as error:
        [duplicate] = error.write_errors
        assert (duplicate["idx"], duplicate["code"]) == (0, 11000), duplicate
        assert "index: email_1 dup key: { email: \"one@x\" }" in duplicate["errmsg"], duplicate
        assert (error.partial_result.inserted_count, error.partial_result.modified_count) == (1, 2)
    with client.start_session() as session, session.start_transaction():
        client.bulk_write([InsertOne({"_id": 6, "region": "a", "email": "6@x"}, namespace=users)], session=session)
    client.bulk_write(
        [DeleteMany({"email": "6@x"}, namespace=users)], ordered=False, write_concern=WriteConcern(w=0)
    )
    many = [InsertOne({"_id": n, "region": "az"[n % 2], "email": n}, namespace=users) for n in range(100, 3100)]
    assert client.bulk_write(many).inserted_count == 3000
    assert client[database].users.count_documents({}) == 3004


main(*sys.argv[1:])
