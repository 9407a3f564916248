// What one types into mongosh about unique indexes; prints what it saw, so that two runs can be compared.
// The collection `users` is there, empty, with an index on `region`.
function attempt(what, work) {
  try {
    print(what, JSON.stringify(work()));
  } catch (error) {
    print(what, error.code, error.codeName);
  }
}
const sorted = () => db.users.getIndexes().sort((one, other) => (one.name < other.name ? -1 : 1));
attempt('index', () => db.users.createIndex({ email: 1 }, { unique: true }));
attempt('indexes', () => db.users.createIndexes([{ login: 1 }, { phone: -1 }], { unique: true, sparse: true }));
attempt('shown', sorted);
attempt('one', () => db.users.insertOne({ _id: 1, region: 'a', email: 'x' }));
attempt('two', () => db.users.insertOne({ _id: 2, region: 'z', email: 'x' }));
attempt('keys', () => db.users.getIndexKeys().length);
attempt('dropped', () => db.users.dropIndex('email_1').ok);
attempt('two', () => db.users.insertOne({ _id: 2, region: 'z', email: 'x' }));
attempt('fails', () => db.users.createIndex({ email: 1 }, { unique: true }));
attempt('dropped', () => db.users.dropIndex({ phone: -1 }).ok);
attempt('shown', sorted);
