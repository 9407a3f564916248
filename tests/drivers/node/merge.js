// Merges into a protected collection, whose constraint is on `email`; the URI names the database.
db.source.insertMany([{ _id: 1, email: 'a' }, { _id: 2, email: 'b' }]);
db.source.aggregate([{ $merge: { into: 'users', on: 'email' } }]);
const merged = db.users.countDocuments({});
try {
  db.source.aggregate([{ $set: { email: 'a' } }, { $merge: 'users' }]);
} catch (error) {
  print(`${merged} merged, ${error.code}`);
}
