// What one types into mongosh; prints what it saw, so that two runs can be compared. The database is the URI's.
db.dropDatabase();
db.things.insertMany(Array.from({ length: 300 }, (_, n) => ({ _id: n, n })));
print('count', db.things.countDocuments({ n: { $gte: 100 } }));
print('toArray', db.things.find().sort({ n: -1 }).limit(2).toArray());
print('updated', db.things.updateMany({}, { $inc: { n: 1 } }).modifiedCount);
print('stats', db.things.stats().count);
print('index', db.things.createIndex({ n: 1 }));
print('collections', db.getCollectionNames());
print('ping', db.runCommand({ ping: 1 }).ok);
print('version', db.version());
try {
  db.things.insertOne({ _id: 1 });
} catch (error) {
  print('duplicate', error.code);
}
const session = db.getMongo().startSession();
session.startTransaction();
session.getDatabase(db.getName()).things.deleteMany({});
session.abortTransaction();
print('aborted', db.things.countDocuments());
print('shown', db.adminCommand({ listDatabases: 1, nameOnly: true }).databases.some((d) => d.name === db.getName()));
db.dropDatabase();
