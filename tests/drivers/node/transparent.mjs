// What the Node driver and mongoose do every day, on unprotected collections; prints what they saw, so that two runs can
// be compared. Usage: node transparent.mjs URI DATABASE
import { MongoClient } from 'mongodb';
import mongoose from 'mongoose';

const [uri, database] = process.argv.slice(2);
const say = (what, seen) => console.log(what, JSON.stringify(seen));

async function driver() {
  const client = await MongoClient.connect(uri, { compressors: ['zlib'] });
  const db = client.db(database);
  await db.dropDatabase();
  const things = db.collection('things');
  await things.insertMany(Array.from({ length: 2000 }, (_, n) => ({ _id: n, n })));
  let sum = 0;
  for await (const thing of things.find({}, { batchSize: 50 })) sum += thing.n;
  say('sum', sum);
  say('updated', (await things.updateMany({ n: { $lt: 10 } }, { $set: { small: true } })).modifiedCount);
  say('found', await things.findOneAndDelete({ _id: 7 }));
  say('aggregated', await things.aggregate([{ $group: { _id: null, max: { $max: '$n' } } }]).toArray());
  const duplicate = await things.insertOne({ _id: 1 }).catch((error) => [error.code, error.keyPattern, error.keyValue]);
  say('duplicate', duplicate);
  const session = client.startSession();
  await session.withTransaction(async () => {
    await things.insertOne({ _id: 'in a transaction' }, { session });
    await things.deleteOne({ _id: 2 }, { session });
  });
  await session.endSession();
  say('committed', await things.find({ _id: { $in: [2, 'in a transaction'] } }).toArray());
  const stream = things.watch();
  const change = stream.next();
  // The stream opens with its first read: write until it has seen something, and leave no write under way.
  let isSeen = false;
  const writing = (async () => {
    while (!isSeen) await things.updateOne({ _id: 3 }, { $inc: { touched: 1 } });
  })();
  say('changed', (await change).documentKey);
  isSeen = true;
  await writing;
  await stream.close();
  await client.close();
}

async function withMongoose() {
  const connection = await mongoose.createConnection(uri, { dbName: database }).asPromise();
  const schema = new mongoose.Schema({ name: { type: String, unique: true }, age: Number }, { autoIndex: false });
  const Person = connection.model('Person', schema);
  await Person.init();
  await Person.createIndexes();
  await Person.create([{ name: 'Ada', age: 36 }, { name: 'Grace', age: 85 }]);
  const duplicate = await Person.create({ name: 'Ada' }).catch((error) => [error.code, error.keyPattern, error.keyValue]);
  say('mongoose duplicate', duplicate);
  const ada = await Person.findOne({ name: 'Ada' });
  ada.age += 1;
  await ada.save();
  say('mongoose saved', (await Person.find().sort('name').lean()).map(({ name, age }) => [name, age]));
  await connection.transaction(async (session) => {
    await Person.deleteOne({ name: 'Grace' }, { session });
  });
  say('mongoose left', await Person.countDocuments());
  await connection.dropDatabase();
  await connection.close();
}

await driver();
await withMongoose();
