// What the Node driver does on protected collections; prints what it saw, so that two runs can be compared.
//
// Usage: node protected.mjs URI URI_OF_A_RELAY DATABASE
//
// The relay cuts the connection of a command whose `comment` says so. The collections are there, empty, each with its
// unique index or constraint: people (email), members (company_id, email; sparse), wallets (accounts.bank,
// accounts.number).

import { EJSON } from 'bson';
import { MongoClient, ReadConcern, ReturnDocument } from 'mongodb';

const [uri, relay, database] = process.argv.slice(2);
const times = ['$clusterTime', 'operationTime', 'electionId', 'opTime', 'recoveryToken'];

// As text, without what differs between any two deployments.
function plain(seen) {
  const drop = (name, value) => (times.includes(name) ? undefined : value);
  return JSON.stringify(EJSON.serialize(seen ?? null), drop);
}

function failure(error) {
  const { code, codeName, keyPattern, keyValue, errInfo, message, errorLabels, result, writeErrors } = error;
  const errors = [writeErrors ?? []].flat().map(({ index, code, errmsg, err }) => ({ index, code, errmsg, err }));
  return { name: error.constructor.name, code, codeName, keyPattern, keyValue, errInfo, message, errorLabels, result, errors };
}

async function attempt(what, work) {
  console.log(what, plain(await work().catch(failure)));
}

// Of a conflict of two transactions: the text names a storage engine's file, which is never the same.
async function conflict(what, work) {
  const told = ({ code, codeName, errorLabels }) => ({ code, codeName, errorLabels });
  console.log(what, plain(await work().catch(told)));
}

async function show(collection) {
  for await (const document of collection.find().sort({ _id: 1 })) console.log(' ', plain(document));
}

const person = (_id, region = 'a', fields = {}) => ({ _id, region, email: `${_id}@x`, ...fields });

async function inserts({ people }) {
  await attempt('insertOne', () => people.insertOne(person(1)));
  await attempt('a duplicate', () => people.insertOne(person(2, 'z', { email: '1@x' })));
  await attempt('the same document', () => people.insertOne(person(1)));
  await attempt('insertMany', () => people.insertMany([person(2), person(3, 'z')]));
  await attempt('ordered', () => people.insertMany([person(4), person(5, 'z', { email: '3@x' }), person(6)]));
  const many = [person(5), person(6, 'z', { email: '2@x' }), person(7, 'a', { email: '3@x' }), person(8, 'z')];
  await attempt('unordered', () => people.insertMany(many, { ordered: false }));
  await show(people);
}

async function updates({ people, wallets }) {
  await people.insertMany([1, 2, 3, 4].map((n) => person(n, n < 3 ? 'a' : 'z', { name: 'Ada' })));
  const first = { _id: 1, region: 'a' };
  await attempt('updateOne', () => people.updateOne(first, { $set: { email: 'new@x' } }));
  await attempt('a duplicate', () => people.updateOne(first, { $set: { email: '4@x' } }));
  await attempt('the freed one', () => people.updateOne({ _id: 4, region: 'z' }, { $set: { email: '1@x' } }));
  await attempt('upsert', () => people.updateOne({ _id: 5, region: 'a' }, { $set: { email: '5@x' } }, { upsert: true }));
  await attempt('upsert of a duplicate', () => people.updateOne({ _id: 6, region: 'a' }, { $set: { email: '5@x' } }, { upsert: true }));
  await attempt('updateMany', () => people.updateMany({ name: 'Ada' }, [{ $set: { email: { $concat: ['$email', '!'] } } }]));
  await attempt('replaceOne', () => people.replaceOne(first, { region: 'a', email: 'r@x' }));
  await attempt('by a duplicate', () => people.replaceOne(first, { region: 'a', email: '5@x' }));
  const collation = { locale: 'en', strength: 2 };
  await attempt('collation', () => people.updateOne({ region: 'z', name: 'ADA' }, { $set: { email: 'c@x' } }, { collation }));
  await attempt('hint', () => people.updateOne(first, { $set: { email: 'h@x' } }, { hint: { _id: 1 } }));
  await attempt('let', () => people.updateOne({ region: 'a', $expr: { $eq: ['$_id', '$$id'] } }, [{ $set: { email: '$$email' } }], { let: { id: 2, email: 'l@x' } }));
  await show(people);
  const account = { bank: 'abc', number: '123' };
  await wallets.insertMany([{ _id: 1, region: 'a' }, { _id: 2, region: 'z', accounts: [{ bank: 'abc', number: '7' }] }]);
  await attempt('push', () => wallets.updateOne({ _id: 1, region: 'a' }, { $push: { accounts: account } }));
  await attempt('push there', () => wallets.updateOne({ _id: 2, region: 'z' }, { $push: { accounts: account } }));
  const arrayFilters = [{ 'a.number': '7' }];
  await attempt('array filters', () => wallets.updateOne({ _id: 2, region: 'z' }, { $set: { 'accounts.$[a].number': '123' } }, { arrayFilters }));
  await attempt('array filters', () => wallets.updateOne({ _id: 2, region: 'z' }, { $set: { 'accounts.$[a].number': '8' } }, { arrayFilters }));
  await show(wallets);
}

async function findOneAnd({ people }) {
  await people.insertMany([person(1, 'a', { n: 1 }), person(2, 'a', { n: 2 }), person(3, 'z', { n: 3 })]);
  const returnDocument = ReturnDocument.AFTER;
  const options = { sort: { n: -1 }, projection: { email: 1 }, returnDocument };
  await attempt('update', () => people.findOneAndUpdate({ region: 'a' }, { $set: { email: 'top@x' } }, options));
  await attempt('a duplicate', () => people.findOneAndUpdate({ _id: 1, region: 'a' }, { $set: { email: '3@x' } }));
  await attempt('upsert', () => people.findOneAndUpdate({ _id: 4, region: 'a' }, { $set: { email: '4@x' } }, { upsert: true, returnDocument }));
  await attempt('with metadata', () => people.findOneAndUpdate({ _id: 4, region: 'a' }, { $set: { email: '5@x' } }, { includeResultMetadata: true }));
  await attempt('replace', () => people.findOneAndReplace({ _id: 4, region: 'a' }, { region: 'a', email: '4@x' }));
  await attempt('by a duplicate', () => people.findOneAndReplace({ _id: 4, region: 'a' }, { region: 'a', email: '3@x' }));
  await attempt('delete', () => people.findOneAndDelete({ region: 'a' }, { sort: { n: -1 } }));
  await attempt('its key is free', () => people.insertOne(person(5, 'z', { email: 'top@x' })));
  await show(people);
}

async function bulks({ members }) {
  const member = (_id, region, email) => ({ insertOne: { document: { _id, region, company_id: 1, email } } });
  const requests = [
    member(1, 'a', '1@x'),
    member(2, 'z', '1@x'),
    member(3, 'z', '3@x'),
    { updateOne: { filter: { _id: 1, region: 'a' }, update: { $set: { email: '3@x' } } } },
    { updateOne: { filter: { _id: 1, region: 'a' }, update: { $set: { email: 'new@x' } } } },
    { replaceOne: { filter: { _id: 4, region: 'z' }, replacement: { region: 'z', company_id: 1, email: '1@x' }, upsert: true } },
    { updateMany: { filter: { company_id: 1 }, update: { $set: { company_id: 2 } } } },
    { deleteOne: { filter: { _id: 3, region: 'z' } } },
    { deleteMany: { filter: { email: 'new@x' } } },
    { insertOne: { document: { _id: 5, region: 'a' } } },
  ];
  await attempt('unordered', () => members.bulkWrite(requests, { ordered: false }));
  await show(members);
  await members.deleteMany({});
  await attempt('ordered', () => members.bulkWrite(requests));
  await show(members);
}

async function unacknowledged({ people }) {
  const silent = people.client.db(database).collection('people', { writeConcern: { w: 0 } });
  await silent.insertOne(person(1));
  await silent.insertMany([person(2, 'z', { email: '1@x' }), person(3, 'z')], { ordered: false });
  while ((await people.countDocuments()) < 2);
  await show(people);
}

async function sessions({ people }) {
  const { client } = people;
  await client.withSession({ causalConsistency: true }, async (session) => {
    await people.insertOne(person(1), { session });
    const readConcern = ReadConcern.fromOptions({ level: 'majority' });
    await attempt('causal', () => people.findOne({ email: '1@x' }, { session, readConcern }));
  });
  await client.withSession({ snapshot: true }, async (session) => {
    await people.findOne({}, { session });
    await people.insertOne(person(2, 'z'));
    await attempt('snapshot', () => people.find({}, { session }).toArray());
  });
}

async function transactions({ people }) {
  const { client } = people;
  await people.insertMany([person(1), person(2, 'z')]);
  await client.withSession(async (session) => {
    const move = async () => {
      await people.deleteOne({ _id: 2, region: 'z' }, { session });
      await people.insertOne(person(3, 'a', { email: '2@x' }), { session });
      await people.insertOne(person(4), { session });
      await people.deleteOne({ _id: 4, region: 'a' }, { session });
      await people.insertOne(person(5, 'z', { email: '4@x' }), { session });
      return 'moved';
    };
    await attempt('withTransaction', () => session.withTransaction(move));
    await attempt('again', () => session.withTransaction(move));
    session.startTransaction();
    await people.updateOne({ _id: 1, region: 'a' }, { $set: { email: 'aborted@x' } }, { session });
    await session.abortTransaction();
    await attempt('its key is free', () => people.insertOne(person(6, 'z', { email: 'aborted@x' })));
    session.startTransaction();
    await attempt('a duplicate', () => people.updateOne({ _id: 1, region: 'a' }, { $set: { email: '2@x' } }, { session }));
    await conflict('  then', () => people.insertOne(person(7), { session }));
    await session.abortTransaction();
    await client.withSession(async (other) => {
      session.startTransaction();
      await people.insertOne(person(7), { session });
      let tries = 0;
      await attempt('two at once', () => other.withTransaction(async () => {
        tries += 1;
        if (tries === 2) await session.commitTransaction();
        await people.insertOne(person(8, 'z', { email: '7@x' }), { session: other });
      }));
      console.log(tries, 'tries');
    });
  });
  await show(people);
}

// Writes whose connection is cut once they are sent: the driver sends them again, and they take effect once.
async function retries() {
  const client = await MongoClient.connect(relay);
  const people = client.db(database).collection('people');
  for (const cut of ['lose the reply', 'hang up']) {
    let number = 0;
    const again = () => ({ comment: `${cut} ${(number += 1)}` });
    const one = { _id: 1, region: 'a' };
    await attempt(cut, () => people.insertOne(person(1), again()));
    await attempt('insertMany', () => people.insertMany([2, 3, 4].map((n) => person(n, n < 3 ? 'a' : 'z')), again()));
    await attempt('a duplicate', () => people.insertOne(person(5, 'z', { email: '1@x' }), again()));
    await attempt('update', () => people.updateOne(one, { $set: { email: 7 } }, again()));
    await attempt('increment', () => people.updateOne(one, { $inc: { email: 1 } }, again()));
    await attempt('a duplicate', () => people.updateOne(one, { $set: { email: '2@x' } }, again()));
    await attempt('findOneAndUpdate', () => people.findOneAndUpdate(one, { $inc: { email: 1 } }, again()));
    await attempt('findOneAndDelete', () => people.findOneAndDelete(one, again()));
    await attempt('its key is free', () => people.insertOne(person(6, 'z', { email: 9 }), again()));
    await attempt('deleteOne', () => people.deleteOne({ _id: 6, region: 'z' }, again()));
    await attempt('bulkWrite', () => people.bulkWrite([
      { insertOne: { document: person(6, 'z', { email: 9 }) } },
      { updateOne: { filter: { _id: 6, region: 'z' }, update: { $inc: { email: 1 } } } },
    ], again()));
    await show(people);
    await people.deleteMany({});
  }
  await client.close();
}

const client = new MongoClient(uri);
let topology;
client.on('topologyDescriptionChanged', ({ newDescription }) => (topology = newDescription.type));
await client.connect();
console.log(topology);
const [people, members, wallets] = ['people', 'members', 'wallets'].map((name) => client.db(database).collection(name));
people.client = client;
for (const step of [inserts, updates, findOneAnd, bulks, unacknowledged, sessions, transactions, retries]) {
  console.log('=', step.name);
  for (const collection of [people, members, wallets]) await collection.deleteMany({});
  await step({ people, members, wallets });
}
await people.insertMany([person(1), person(2, 'z')]);
await members.insertOne({ _id: 1, region: 'z', company_id: 1 });
await wallets.insertOne({ _id: 1, region: 'a', accounts: [{ bank: 1, number: 2 }, { bank: 2 }] });
await client.close();
// Timers of a driver that has been closed would keep the process for 30 s.
process.exit();
