// What somebody does in the shell: prints OK if all of it worked.
const assert = require("node:assert/strict");
db = db.getSiblingDB("shell");
db.dropDatabase();
assert.equal(db.hello().msg, "isdbgrid");
assert.equal(sh.enableSharding("shell", "shard0").ok, 1);
assert.equal(sh.shardCollection("shell.c", { k: 1 }).ok, 1);
sh.splitAt("shell.c", { k: 50 });
// A shard takes part in one move at a time, and others move theirs, too.
for (let moved = false; !moved; ) {
  try {
    moved = sh.moveChunk("shell.c", { k: 60 }, "shard1").ok === 1;
  } catch (busy) {
    assert.equal(busy.code, 117);
  }
}
db.c.insertMany([...Array(100).keys()].map((n) => ({ _id: n, k: n })));
assert.equal(db.c.countDocuments(), 100);
assert.equal(db.c.find().sort({ k: -1 }).limit(3).toArray().map((found) => found.k).join(), "99,98,97");
assert.equal(db.c.updateMany({}, { $set: { z: 1 } }).modifiedCount, 100);
assert.equal(db.c.deleteOne({ k: 5 }).deletedCount, 1);
assert.equal(db.c.replaceOne({ _id: 6, k: 6 }, { k: 6, r: 1 }).modifiedCount, 1);
let refused;
try {
  db.c.createIndex({ email: 1 }, { unique: true });
} catch (error) {
  refused = error.codeName;
}
assert.equal(refused, "CannotCreateIndex");
assert.equal(db.c.getIndexes().map((index) => index.name).join(), "_id_,k_1");
sh.status();
db.c.getShardDistribution();
assert.equal(db.c.stats().count, 99);
assert.equal(db.c.find({ k: { $gt: 10 } }).explain("executionStats").executionStats.nReturned, 89);
const session = db.getMongo().startSession();
session.startTransaction();
for (const k of [1, 99]) session.getDatabase("shell").c.insertOne({ _id: 1000 + k, k });
session.commitTransaction();
session.endSession();
assert.equal(db.c.countDocuments(), 101);
assert.equal(sh.getBalancerState(), false);
db.c.renameCollection("d");
assert.equal(db.d.countDocuments(), 101);
assert.equal(db.d.drop(), true);
db.dropDatabase();
print("OK");
