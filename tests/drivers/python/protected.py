"""What pymongo does on protected collections; prints what it saw, so that two runs can be compared.

Usage: protected.py URI URI_OF_A_RELAY DATABASE

The relay cuts the connection of a command whose `comment` says so. The collections are there, empty, each with its unique
index or constraint: people (email), members (company_id, email; sparse), wallets (accounts.bank, accounts.number).
"""

import sys

import pymongo
from pymongo import (
    DeleteMany,
    DeleteOne,
    InsertOne,
    MongoClient,
    ReplaceOne,
    ReturnDocument,
    UpdateMany,
    UpdateOne,
    WriteConcern,
    common,
    network_layer,
)
from pymongo.collation import Collation
from pymongo.errors import BulkWriteError, PyMongoError
from pymongo.read_concern import ReadConcern

# After each connection that is cut, the driver's monitor needs half a second to notice it, and half a second until it asks again.
network_layer._POLL_TIMEOUT = 0.02
common.MIN_HEARTBEAT_INTERVAL = 0.02

# `retriedStmtIds` only tells that a statement was sent twice.
TIMES = ("retriedStmtIds", "$clusterTime", "operationTime", "electionId", "opTime", "recoveryToken")
LABELS = ("TransientTransactionError", "UnknownTransactionCommitResult", "RetryableWriteError", "NoWritesPerformed")
COLLATION = Collation("en", strength=2)


def plain(seen):
    """What was seen, without what differs between any two deployments; fields in one order."""
    if isinstance(seen, dict):
        return {key: plain(seen[key]) for key in sorted(seen) if key not in TIMES}
    if isinstance(seen, list):
        return [plain(value) for value in seen]
    for result in ("bulk_api_result", "raw_result", "inserted_ids", "inserted_id"):
        if hasattr(seen, result):
            return plain(getattr(seen, result))
    # A statement of a bulk write, as its error repeats it.
    return sorted(seen.items(), key=str) if hasattr(seen, "items") else seen


def attempt(what, work):
    try:
        print(what, plain(work()))
    except PyMongoError as error:
        labels = [label for label in LABELS if error.has_error_label(label)]
        print(what, type(error).__name__, error.code, labels, plain(error.details))


def conflict(what, work):
    """A conflict of two transactions: the text names a storage engine's file, which is never the same."""
    try:
        print(what, plain(work()))
    except PyMongoError as error:
        labels = [label for label in LABELS if error.has_error_label(label)]
        print(what, type(error).__name__, error.code, error.details["codeName"], labels)


def show(collection):
    for document in collection.find(sort=[("_id", 1)]):
        print(" ", collection.name, document)


def person(number, region="a", **fields):
    return {"_id": number, "region": region, "email": f"{number}@x", **fields}


def inserts(db):
    people = db.people
    attempt("insert_one", lambda: people.insert_one(person(1)))
    attempt("insert_one on the other shard", lambda: people.insert_one(person(2, "z")))
    attempt("a duplicate there", lambda: people.insert_one(person(3, "z", email="1@x")))
    attempt("without the field", lambda: people.insert_one({"_id": 4, "region": "a"}))
    attempt("again without", lambda: people.insert_one({"_id": 5, "region": "z"}))
    attempt("the same document", lambda: people.insert_one(person(1)))
    attempt("insert_many", lambda: people.insert_many([person(10), person(11, "z"), person(12)]))
    attempt("ordered", lambda: people.insert_many([person(13), person(14, "z", email="11@x"), person(15)]))
    many = [person(16), person(17, "z", email="1@x"), person(18, email="2@x"), person(19, "z", email="19@x")]
    attempt("unordered", lambda: people.insert_many(many, ordered=False))
    attempt("within itself", lambda: people.insert_many([person(20), person(21, email="20@x")]))
    attempt("an embedded value", lambda: people.insert_one(person(22, email={"a": [1, "x"]})))
    attempt("equal but for the type", lambda: people.insert_one(person(23, "z", email={"a": [1.0, "x"]})))
    show(people)


def updates(db):
    people = db.people
    people.insert_many([person(n, "a" if n < 4 else "z", name="Ada") for n in range(1, 8)])
    first = {"_id": 1, "region": "a"}
    attempt("of no key", lambda: people.update_one(first, {"$set": {"name": "Grace"}}))
    attempt("of a key", lambda: people.update_one(first, {"$set": {"email": "new@x"}}))
    attempt("the freed one", lambda: people.update_one({"_id": 7, "region": "z"}, {"$set": {"email": "1@x"}}))
    attempt("a duplicate", lambda: people.update_one(first, {"$set": {"email": "7@x", "name": "x"}}))
    attempt("to a taken one", lambda: people.update_one(first, {"$set": {"email": "5@x", "name": "x"}}))
    attempt("to its own", lambda: people.update_one(first, {"$set": {"email": "new@x"}}))
    attempt("unset", lambda: people.update_one(first, {"$unset": {"email": 1}}))
    attempt("unset of another", lambda: people.update_one({"_id": 2, "region": "a"}, {"$unset": {"email": 1}}))
    attempt("nothing found", lambda: people.update_one({"_id": 99, "region": "a"}, {"$set": {"email": "5@x"}}))
    attempt("by _id alone", lambda: people.update_one({"_id": 5}, {"$set": {"email": "five@x"}}))
    upsert = {"$set": {"name": "up"}, "$setOnInsert": {"email": "up@x"}}
    attempt("upsert", lambda: people.update_one({"_id": 30, "region": "a"}, upsert, upsert=True))
    attempt("upsert again", lambda: people.update_one({"_id": 30, "region": "a"}, upsert, upsert=True))
    attempt("upsert of a duplicate", lambda: people.update_one({"_id": 31, "region": "z"}, upsert, upsert=True))
    attempt("upsert by the key", lambda: people.update_one(
        {"region": "z", "email": "five@x"}, {"$set": {"name": "by key"}}, upsert=True))
    pipeline = [{"$set": {"email": {"$concat": ["$email", ".x"]}}}]
    attempt("of many, by a pipeline", lambda: people.update_many({"email": {"$type": "string"}}, pipeline))
    attempt("of many, none found", lambda: people.update_many({"email": "nobody"}, pipeline))
    attempt("of many, to one value", lambda: people.update_many({}, {"$set": {"email": "up@x.x"}, "$unset": {"name": 1}}))
    attempt("let", lambda: people.update_one(
        {"region": "a", "$expr": {"$eq": ["$_id", "$$id"]}}, [{"$set": {"email": "$$email"}}],
        let={"id": 2, "email": "let@x"}))
    attempt("hint", lambda: people.update_one(first, {"$set": {"email": "hint@x"}}, hint="_id_"))
    attempt("hint on nothing", lambda: people.update_one(first, {"$set": {"email": "h@x"}}, hint="none"))
    attempt("collation", lambda: people.update_one(
        {"region": "a", "name": "ADA"}, {"$set": {"email": "collated@x"}}, collation=COLLATION))
    attempt("replace_one", lambda: people.replace_one(first, {"region": "a", "email": "replaced@x"}))
    attempt("by a duplicate", lambda: people.replace_one(first, {"region": "a", "email": "collated@x"}))
    attempt("by itself", lambda: people.replace_one(first, {"region": "a", "email": "replaced@x"}))
    attempt("upsert", lambda: people.replace_one({"_id": 40, "region": "z"}, person(40, "z"), upsert=True))
    attempt("upsert of a duplicate", lambda: people.replace_one(
        {"_id": 41, "region": "z"}, person(41, "z", email="40@x"), upsert=True))
    attempt("an unknown operator", lambda: people.update_one(first, {"$unheard": {"email": 1}}))
    attempt("of _id", lambda: people.update_one(first, {"$set": {"_id": 2, "email": "no@x"}}))
    show(people)


def arrays(db):
    wallets = db.wallets
    account = {"bank": "abc", "number": "123", "balance": 500}
    wallets.insert_many([{"_id": 1, "region": "a"}, {"_id": 2, "region": "z"}, {"_id": 3, "region": "z"}])
    one, two, three = {"_id": 1, "region": "a"}, {"_id": 2, "region": "z"}, {"_id": 3, "region": "z"}
    attempt("push", lambda: wallets.update_one(one, {"$push": {"accounts": account}}))
    attempt("push there", lambda: wallets.update_one(two, {"$push": {"accounts": account}}))
    attempt("push again", lambda: wallets.update_one(one, {"$push": {"accounts": account}}))
    attempt("pull one", lambda: wallets.update_one(one, {"$pop": {"accounts": 1}}))
    attempt("still held", lambda: wallets.update_one(two, {"$push": {"accounts": account}}))
    each = [{"bank": "abc", "number": "7"}, {"bank": "def", "number": "8"}]
    attempt("push many", lambda: wallets.update_one(two, {"$push": {"accounts": {"$each": each}}}))
    attempt("array filters", lambda: wallets.update_one(
        two, {"$set": {"accounts.$[a].number": "9"}}, array_filters=[{"a.bank": "abc"}]))
    attempt("a duplicate by them", lambda: wallets.update_one(
        two, {"$set": {"accounts.$[a].number": "123"}}, array_filters=[{"a.bank": "abc"}]))
    attempt("positional", lambda: wallets.update_one(
        {**two, "accounts.bank": "def"}, {"$set": {"accounts.$.number": "88"}}))
    attempt("the freed one", lambda: wallets.update_one(three, {"$addToSet": {"accounts": {"bank": "def", "number": "8"}}}))
    attempt("balance", lambda: wallets.update_one(one, {"$inc": {"accounts.0.balance": 5}}))
    attempt("rename", lambda: wallets.update_one(three, {"$rename": {"accounts": "old"}}))
    attempt("pull all", lambda: wallets.update_many({}, {"$pull": {"accounts": {"bank": "abc"}}}))
    attempt("push there", lambda: wallets.update_one(three, {"$push": {"accounts": account}}))
    show(wallets)


def find_and_modify(db):
    people = db.people
    people.insert_many([person(n, n=n) for n in range(1, 5)] + [person(5, "z", n=5)])
    a = {"region": "a"}
    after = ReturnDocument.AFTER
    attempt("update", lambda: people.find_one_and_update(
        a, {"$set": {"email": "top@x"}}, sort=[("n", -1)], projection={"email": 1}, return_document=after))
    attempt("before", lambda: people.find_one_and_update(a, {"$set": {"email": "low@x"}}, sort=[("n", 1)]))
    attempt("a duplicate", lambda: people.find_one_and_update({"_id": 2, **a}, {"$set": {"email": "5@x"}}))
    attempt("nothing found", lambda: people.find_one_and_update({"_id": 99, **a}, {"$set": {"email": "5@x"}}))
    attempt("upsert", lambda: people.find_one_and_update(
        {"_id": 50, **a}, {"$set": {"email": "50@x"}}, upsert=True, return_document=after))
    attempt("upsert of a duplicate", lambda: people.find_one_and_update(
        {"_id": 51, **a}, {"$set": {"email": "50@x"}}, upsert=True, return_document=after))
    attempt("array filters", lambda: people.find_one_and_update(
        {"_id": 2, **a}, {"$set": {"email.$[].x": 1}}, array_filters=[], return_document=after))
    attempt("pipeline", lambda: people.find_one_and_update(
        {"_id": 2, **a}, [{"$set": {"email": {"$toUpper": "$email"}}}], return_document=after, projection=["email"]))
    attempt("hint on nothing", lambda: people.find_one_and_update(
        {"_id": 2, **a}, {"$set": {"email": "h@x"}}, hint="none"))
    attempt("let", lambda: people.find_one_and_update(
        {**a, "$expr": {"$eq": ["$_id", "$$id"]}}, [{"$set": {"email": "$$email"}}],
        let={"id": 2, "email": "let@x"}, return_document=after))
    attempt("hint", lambda: people.find_one_and_update(
        {"_id": 2, **a}, {"$set": {"email": "hint@x"}}, hint="_id_", return_document=after))
    attempt("replace", lambda: people.find_one_and_replace(
        {"_id": 2, **a}, {"region": "a", "email": "r@x"}, return_document=after))
    attempt("by a duplicate", lambda: people.find_one_and_replace({"_id": 2, **a}, {"region": "a", "email": "5@x"}))
    attempt("delete", lambda: people.find_one_and_delete(a, sort=[("n", -1)], projection={"_id": 0, "email": 1}))
    attempt("its key is free", lambda: people.insert_one(person(60, "z", email="top@x")))
    attempt("delete nothing", lambda: people.find_one_and_delete({"_id": 99, **a}))
    show(people)


def deletes(db):
    people = db.people
    people.insert_many([person(n, "a" if n % 2 else "z") for n in range(1, 9)])
    attempt("delete_one", lambda: people.delete_one({"_id": 1, "region": "a"}))
    attempt("its key is free", lambda: people.insert_one(person(11, "z", email="1@x")))
    attempt("delete_one of nothing", lambda: people.delete_one({"_id": 1, "region": "a"}))
    attempt("collation", lambda: people.delete_one({"region": "z", "email": "2@X"}, collation=COLLATION))
    attempt("hint", lambda: people.delete_one({"_id": 3, "region": "a"}, hint="_id_"))
    attempt("delete_many", lambda: people.delete_many({"_id": {"$gt": 4}}))
    attempt("their keys are free", lambda: people.insert_many([person(n, "m", email=f"{n - 10}@x") for n in range(15, 19)]))
    attempt("let", lambda: people.delete_many({"$expr": {"$gt": ["$_id", "$$id"]}}, let={"id": 16}))
    show(people)
    attempt("all", lambda: people.delete_many({}))
    attempt("all are free", lambda: people.insert_many([person(n) for n in range(1, 9)]))


def bulks(db):
    members = db.members
    member = lambda number, region, email, company=1: InsertOne(
        {"_id": number, "region": region, "company_id": company, "email": email})
    requests = [
        member(1, "a", "1@x"),
        member(2, "z", "2@x"),
        member(3, "z", "1@x", company=2),
        UpdateOne({"_id": 1, "region": "a"}, {"$set": {"email": "new@x"}}),
        member(4, "a", "1@x"),
        ReplaceOne({"_id": 2, "region": "z"}, {"region": "z", "company_id": 3, "email": "1@x"}),
        UpdateMany({"company_id": 1}, {"$set": {"company_id": 4}}),
        UpdateOne({"_id": 9, "region": "a"}, {"$set": {"email": "9@x", "company_id": 4}}, upsert=True),
        DeleteOne({"_id": 3, "region": "z"}),
        DeleteMany({"company_id": 3}),
        InsertOne({"_id": 5, "region": "a"}),
        InsertOne({"_id": 6, "region": "z"}),
    ]
    attempt("bulk", lambda: members.bulk_write(requests))
    show(members)
    failing = [
        member(20, "a", "20@x"),
        member(21, "z", "20@x"),
        member(22, "z", "22@x"),
        UpdateOne({"_id": 20, "region": "a"}, {"$set": {"email": "22@x"}}),
        UpdateOne({"_id": 20, "region": "a"}, {"$set": {"email": "free@x"}}),
        ReplaceOne({"_id": 23, "region": "z"}, {"region": "z", "company_id": 1, "email": "free@x"}, upsert=True),
        DeleteOne({"_id": 20, "region": "a"}),
        member(24, "z", "free@x"),
    ]
    attempt("unordered", lambda: members.bulk_write(failing, ordered=False))
    show(members)
    members.delete_many({"_id": {"$gte": 20}})
    attempt("ordered", lambda: members.bulk_write(failing))
    show(members)
    a = {"region": "a"}
    mistaken = [
        UpdateOne({"_id": {"$unheard": 1}, **a}, {"$set": {"email": "x"}}),
        UpdateOne({"_id": 1, **a}, {"$set": {"email": "after@x"}}),
        UpdateMany({"$expr": {"$divide": [1, 0]}, **a}, {"$set": {"email": "x"}}),
        DeleteOne({"_id": {"$unheard": 1}, **a}),
        DeleteMany({"$expr": {"$divide": [1, 0]}, **a}),
        DeleteOne({"_id": 9, **a}),
    ]
    attempt("mistakes", lambda: members.bulk_write(mistaken, ordered=False))
    show(members)
    with db.client.start_session() as session:
        session.start_transaction()
        attempt("in a transaction", lambda: members.update_one(
            {"_id": {"$unheard": 1}, **a}, {"$set": {"email": "x"}}, session=session))
        session.abort_transaction()


def unacknowledged(db):
    silent = db.get_collection("people", write_concern=WriteConcern(w=0))
    # On one connection, in this order.
    with db.client.start_session():
        silent.insert_one(person(1))
        silent.insert_one(person(2, "z", email="1@x"))
        silent.insert_many([person(3), person(4, "z", email="3@x"), person(5)], ordered=False)
        silent.update_one({"_id": 3, "region": "a"}, {"$set": {"email": "1@x"}})
        silent.update_one({"_id": 1, "region": "a"}, {"$set": {"email": "moved@x"}})
        silent.delete_one({"_id": 5, "region": "a"})
        silent.insert_one(person(6, "z", email="5@x"))
    while not db.people.find_one({"_id": 6}):
        pass
    show(db.people)


def sessions(db):
    people, client = db.people, db.client
    with client.start_session(causal_consistency=True) as session:
        people.insert_one(person(1), session=session)
        people.update_one({"_id": 1, "region": "a"}, {"$set": {"email": "one@x"}}, session=session)
        majority = people.with_options(read_concern=ReadConcern("majority"))
        attempt("causal", lambda: majority.find_one({"_id": 1, "region": "a"}, session=session))
        try:
            people.insert_one(person(2, "z", email="one@x"), session=session)
        except PyMongoError:
            attempt("after an error", lambda: majority.find_one({"email": "one@x"}, session=session))
        time = session.operation_time
    with client.start_session(causal_consistency=True) as later:
        later.advance_operation_time(time)
        attempt("of another", lambda: people.find_one({"email": "one@x"}, session=later))
    with client.start_session(snapshot=True) as snapshot:
        before = people.count_documents({}, session=snapshot)
        people.insert_one(person(3, "z"))
        people.delete_one({"_id": 1, "region": "a"})
        attempt("snapshot", lambda: [before, list(people.find({}, session=snapshot))])
    show(people)


def transactions(db):
    people, client = db.people, db.client
    people.insert_many([person(1), person(2, "z")])
    with client.start_session() as session:

        def within(*works, end=session.commit_transaction):
            session.start_transaction()
            for number, work in enumerate(works):
                attempt(f"  {number}", work)
            attempt("  end", end)

        print("commit")
        within(
            lambda: people.insert_one(person(3), session=session),
            lambda: people.update_one({"_id": 1, "region": "a"}, {"$set": {"email": "one@x"}}, session=session),
            lambda: people.insert_one(person(4, "z", email="1@x"), session=session),
            lambda: people.find_one({"email": "1@x"}, session=session),
        )
        show(people)
        print("abort")
        within(
            lambda: people.delete_many({}, session=session),
            lambda: people.insert_one(person(5), session=session),
            end=session.abort_transaction,
        )
        attempt("its key is free", lambda: people.insert_one(person(5, "z", email="5@x")))
        print("insert, then delete")
        within(
            lambda: people.insert_one(person(6), session=session),
            lambda: people.delete_one({"_id": 6, "region": "a"}, session=session),
            lambda: people.insert_one(person(7, "z", email="6@x"), session=session),
        )
        print("delete, then insert")
        within(
            lambda: people.delete_one({"_id": 7, "region": "z"}, session=session),
            lambda: people.insert_one(person(8, "a", email="6@x"), session=session),
            lambda: people.find_one_and_delete({"_id": 8, "region": "a"}, session=session),
            lambda: people.insert_one(person(9, "z", email="6@x"), session=session),
        )
        show(people)
        print("swap")
        within(
            lambda: people.update_one({"_id": 1, "region": "a"}, {"$set": {"email": "other"}}, session=session),
            lambda: people.update_one({"_id": 2, "region": "z"}, {"$set": {"email": "one@x"}}, session=session),
            lambda: people.update_one({"_id": 1, "region": "a"}, {"$set": {"email": "2@x"}}, session=session),
        )
        for duplicate in (
            lambda: people.insert_one(person(10, "z", email="2@x"), session=session),
            lambda: people.insert_many([person(10, "z", email="2@x"), person(11)], ordered=False, session=session),
            lambda: people.update_one({"_id": 2, "region": "z"}, {"$set": {"email": "2@x"}}, session=session),
            lambda: people.find_one_and_update({"_id": 2, "region": "z"}, {"$set": {"email": "2@x"}}, session=session),
        ):
            session.start_transaction()
            people.insert_one(person(20), session=session)
            attempt("a duplicate", duplicate)
            conflict("  then", lambda: people.insert_one(person(21), session=session))
            session.abort_transaction()
        show(people)

        calls = []

        def rename(session):
            calls.append("rename")
            people.update_one({"_id": 2, "region": "z"}, {"$set": {"email": "with@x"}}, session=session)
            people.insert_one(person(30, "z"), session=session)

        attempt("with_transaction", lambda: session.with_transaction(rename))
        attempt("with a duplicate", lambda: session.with_transaction(rename))
        print(calls)
    conflicts(people, client)
    show(people)


def conflicts(people, client):
    """Two transactions that want the same key: the second is told to try again, and then sees who was first."""
    with client.start_session() as one, client.start_session() as two:
        one.start_transaction()
        two.start_transaction()
        people.insert_one(person(40), session=one)
        conflict("both insert", lambda: people.insert_one(person(41, "z", email="40@x"), session=two))
        attempt("the first commits", one.commit_transaction)
        two.abort_transaction()
        one.start_transaction()
        two.start_transaction()
        people.update_one({"_id": 40, "region": "a"}, {"$set": {"email": "both@x"}}, session=one)
        conflict("both update", lambda: people.find_one_and_update(
            {"_id": 1, "region": "a"}, {"$set": {"email": "both@x"}}, session=two))
        one.abort_transaction()
        two.abort_transaction()
        one.start_transaction()
        people.insert_one(person(42), session=one)
        tries = []

        def callback(session):
            tries.append(1)
            if len(tries) == 2:
                one.commit_transaction()
            people.insert_one(person(43, "z", email="42@x"), session=session)

        attempt("tried again", lambda: two.with_transaction(callback))
        print(len(tries), "tries")


def retries(db, relay):
    """Writes whose connection is cut once they are sent: the driver sends them again, and they take effect once."""
    client = MongoClient(relay, retryWrites=True)
    people = client[db.name].people
    for cut in ("lose the reply", "hang up"):
        number = iter(range(1, 100))
        comment = lambda: f"{cut} {next(number)}"
        one = {"_id": 1, "region": "a"}
        attempt(cut, lambda: people.insert_one(person(1), comment=comment()))
        attempt("insert_many", lambda: people.insert_many([person(n, "a" if n % 2 else "z") for n in range(2, 9)], comment=comment()))
        attempt("a duplicate", lambda: people.insert_one(person(9, "z", email="1@x"), comment=comment()))
        attempt("with duplicates", lambda: people.insert_many(
            [person(9), person(10, email="1@x"), person(11, "z")], ordered=False, comment=comment()))
        attempt("update", lambda: people.update_one(one, {"$set": {"email": "one@x"}}, comment=comment()))
        attempt("increment", lambda: people.update_one(one, {"$set": {"email": 1}}, comment=comment()))
        attempt("increment", lambda: people.update_one(one, {"$inc": {"email": 1}}, comment=comment()))
        attempt("increment of no key", lambda: people.update_one(one, {"$inc": {"n": 1}}, comment=comment()))
        attempt("a duplicate", lambda: people.update_one(one, {"$set": {"email": "2@x"}}, comment=comment()))
        attempt("upsert", lambda: people.update_one(
            {"_id": 20, "region": "z"}, {"$set": {"email": "20@x"}}, upsert=True, comment=comment()))
        attempt("replace", lambda: people.replace_one(one, {"region": "a", "email": "r@x"}, comment=comment()))
        attempt("find_one_and_update", lambda: people.find_one_and_update(one, {"$set": {"email": "f@x"}}, comment=comment()))
        attempt("find_one_and_replace", lambda: people.find_one_and_replace(
            one, {"region": "a", "email": "g@x"}, return_document=ReturnDocument.AFTER, comment=comment()))
        attempt("find_one_and_delete", lambda: people.find_one_and_delete(one, comment=comment()))
        attempt("its key is free", lambda: people.insert_one(person(30, "z", email="g@x"), comment=comment()))
        attempt("delete_one", lambda: people.delete_one({"_id": 20, "region": "z"}, comment=comment()))
        attempt("bulk_write", lambda: people.bulk_write([
            InsertOne(person(20)), UpdateOne({"_id": 20, "region": "a"}, {"$inc": {"email": 1}}),
            UpdateOne({"_id": 20, "region": "a"}, {"$set": {"email": "new@x"}}), DeleteOne({"_id": 30, "region": "z"}),
        ], ordered=False, comment=comment()))
        with client.start_session() as session:
            session.start_transaction()
            people.insert_one(person(50), session=session)
            people.delete_one({"_id": 2, "region": "z"}, session=session)
            attempt("commit", session.commit_transaction)
        show(people)
        people.delete_many({})
    client.close()


def main():
    uri, relay, name = sys.argv[1:]
    client = MongoClient(uri)
    db = client[name]
    db.people.find_one()
    print(client.topology_description.topology_type_name)
    steps = inserts, updates, arrays, find_and_modify, deletes, bulks, unacknowledged, sessions, transactions
    for step in steps:
        print("=", step.__name__)
        step(db)
        for collection in (db.people, db.wallets, db.members):
            if step is not steps[-1]:
                collection.delete_many({})
    print("=", retries.__name__)
    db.people.delete_many({})
    retries(db, relay)
    db.people.insert_many([person(1), person(2, "z")])
    db.members.insert_one({"_id": 1, "region": "a", "company_id": 1})
    db.wallets.insert_one({"_id": 1, "region": "z", "accounts": [{"bank": 1, "number": 2}, {"bank": 1}]})


main()
