// An application with unique indexes in its mongoose schemas; prints what it saw, so that two runs can be compared.
//
// Usage: node created-mongoose.mjs URI DATABASE
//
// The collection `users` is there, empty, with an index on `region`.

import mongoose from 'mongoose';

const [uri, database] = process.argv.slice(2);
const { Schema } = mongoose;

const fields = {
  _id: Number,
  region: { type: String, index: true },
  email: { type: String, unique: true },
  phone: { type: String, index: { unique: true, sparse: true } },
  company: Number,
  badge: Number,
  name: String,
};

function schemaOf(changes) {
  const schema = new Schema({ ...fields, ...changes }, { shardKey: { region: 1 } });
  schema.index({ company: 1, badge: -1 }, { unique: true, partialFilterExpression: { badge: { $gt: 0 } } });
  schema.index({ name: 1 }, { unique: true, name: 'by name', collation: { locale: 'en', strength: 2 }, sparse: true });
  return schema;
}

async function show(Model) {
  const indexes = await Model.listIndexes();
  indexes.sort((one, other) => (one.name < other.name ? -1 : 1));
  for (const index of indexes) console.log('index', JSON.stringify(index));
}

async function create(Model, document) {
  try {
    await Model.create(document);
    console.log('created', document._id);
  } catch ({ code, message, keyPattern, keyValue }) {
    console.log('refused', document._id, code, message, JSON.stringify([keyPattern, keyValue]));
  }
}

const connection = await mongoose.createConnection(uri, { dbName: database }).asPromise();
// autoIndex makes the indexes.
const User = connection.model('User', schemaOf({}), 'users');
await User.init();
console.log('synced', await User.syncIndexes(), await User.syncIndexes());
console.log('differs', JSON.stringify(await User.diffIndexes()));
await show(User);
await create(User, { _id: 1, region: 'a', email: 'a@x', phone: '1', company: 1, badge: 1, name: 'Ann' });
await create(User, { _id: 2, region: 'z', email: 'a@x' });
await create(User, { _id: 2, region: 'z', email: 'b@x', phone: '1' });
await create(User, { _id: 2, region: 'z', email: 'b@x', company: 1, badge: 1 });
await create(User, { _id: 2, region: 'z', email: 'b@x', name: 'ANN' });
await create(User, { _id: 2, region: 'z', email: 'b@x', company: 1, badge: 0 });

// The next version of the application.
connection.deleteModel('User');
const Next = connection.model('User', schemaOf({ email: String, phone: { type: String, unique: true } }), 'users');
await Next.init().catch(({ code, codeName }) => console.log('conflicts', code, codeName));
await Next.deleteMany({ phone: null });
console.log('synced', await Next.syncIndexes(), await Next.syncIndexes());
await show(Next);
await create(Next, { _id: 3, region: 'z', email: 'a@x', phone: '3' });
await create(Next, { _id: 4, region: 'a', email: 'a@x' });
await create(Next, { _id: 5, region: 'z', email: 'a@x' });

// And the one before again, over documents that it doesn't allow.
connection.deleteModel('User');
const Former = connection.model('User', schemaOf({}), 'users');
await Former.init().catch(({ code, codeName }) => console.log('fails', code, codeName));
await show(Former);
await connection.close();
