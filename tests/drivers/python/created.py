"""Index commands as frameworks send them, and how they compare indexes afterwards; prints what the driver says.

Usage: created.py URI DATABASE

The collection `users` is there, empty, with an index on `region`.
"""

import sys

from pymongo import ASCENDING, DESCENDING, IndexModel, MongoClient
from pymongo.errors import DuplicateKeyError, OperationFailure

client = MongoClient(sys.argv[1])
database = client[sys.argv[2]]
users = database.users


def attempt(what, work):
    try:
        print(what, work())
    except DuplicateKeyError as error:
        print(what, "duplicate", error.code, error.details["keyPattern"], error.details["keyValue"])
    except OperationFailure as error:
        print(what, error.code, error.details["codeName"])


def show():
    for name, index in sorted(users.index_information().items()):
        print("  ", name, index)


def insert(document):
    attempt(f"insert {document}", lambda: users.insert_one(dict(document)).inserted_id)


# Django: unique constraints of nullable fields are partial.
email = IndexModel([("email", ASCENDING)], name="auth_user_email_uniq", unique=True,
                   partialFilterExpression={"$and": [{"email": {"$type": "string"}}]})
attempt("Django", lambda: users.create_indexes([email]))
# Spring: all options are stated.
attempt("Spring", lambda: database.command({
    "createIndexes": "users",
    "indexes": [{"key": {"login": 1}, "name": "login", "unique": True, "sparse": True, "background": False}],
})["ok"])
# Mongoid: a symbol's name, and a background build.
attempt("Mongoid", lambda: database.command({
    "createIndexes": "users",
    "indexes": [{"key": {"ssn": -1}, "unique": True, "name": "ssn_-1", "background": True, "sparse": True}],
})["ok"])
# Prisma: its own names.
attempt("Prisma", lambda: database.command({
    "createIndexes": "users",
    "indexes": [{"key": {"tenant": 1, "slug": 1}, "name": "users_tenant_slug_key", "unique": True}],
    "writeConcern": {"w": "majority"},
})["ok"])
# All of them at each start.
for start in range(2):
    attempt("again", lambda: users.create_indexes([email, IndexModel([("login", 1)], name="login", unique=True, sparse=True)]))
show()
insert({"_id": 1, "region": "a", "email": "a@x", "login": "a", "ssn": 1, "tenant": 1, "slug": "s"})
insert({"_id": 2, "region": "z", "email": "a@x"})
insert({"_id": 2, "region": "z", "login": "a"})
insert({"_id": 2, "region": "z", "ssn": 1})
insert({"_id": 2, "region": "z", "tenant": 1, "slug": "s"})
insert({"_id": 2, "region": "z", "email": 1})
insert({"_id": 3, "region": "a", "email": 1, "slug": "s"})
attempt("other options", lambda: users.create_index("login", name="login", unique=True))
attempt("other key", lambda: users.create_index([("region", 1), ("login", 1)], name="login", unique=True))
attempt("other name", lambda: users.create_index("login", name="by_login", unique=True, sparse=True))
attempt("not unique", lambda: users.create_index([("ssn", DESCENDING)], sparse=True))
attempt("of duplicates", lambda: users.create_index([("email", 1), ("region", 1)], unique=True, name="fine"))
attempt("of duplicates", lambda: users.create_index("age", unique=True))
show()
attempt("drop by name", lambda: users.drop_index("login"))
attempt("drop again", lambda: users.drop_index("login"))
attempt("drop by key", lambda: users.drop_index([("ssn", DESCENDING)]))
insert({"_id": 4, "region": "z", "login": "a", "ssn": 1, "slug": "t"})
attempt("drop several", lambda: database.command("dropIndexes", "users", index=["fine", "users_tenant_slug_key"])["ok"])
show()
