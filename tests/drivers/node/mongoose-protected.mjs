// What an application does with mongoose on protected collections; prints what it saw, so that two runs can be compared.
//
// Usage: node mongoose-protected.mjs URI URI_OF_A_RELAY DATABASE
//
// The collections are there, empty, each with its unique index or constraint: people (email), members (company_id, email;
// sparse), wallets (accounts.bank, accounts.number).

import mongoose from 'mongoose';

const [uri, relay, database] = process.argv.slice(2);
const { Schema } = mongoose;

function plain(seen) {
  const drop = (name, value) => (['$clusterTime', 'operationTime', 'electionId', 'opTime'].includes(name) ? undefined : value);
  return JSON.stringify(seen ?? null, drop);
}

// As an application looks at an error.
function failure({ name, code, keyPattern, keyValue, message, errors, writeErrors, results }) {
  const invalid = errors && Object.entries(errors).map(([path, { kind, value }]) => [path, kind, value]);
  const failed = writeErrors && [writeErrors].flat().map(({ index, code, errmsg, err }) => ({ index, code, errmsg, err }));
  return { name, code, keyPattern, keyValue, message, invalid, failed, results };
}

async function attempt(what, work) {
  console.log(what, plain(await work().catch(failure)));
}

// The constraints are Keyward's: mongoose mustn't create indexes.
const options = { autoIndex: false, autoCreate: false, shardKey: { region: 1 }, timestamps: false };

const personSchema = new Schema({
  _id: Number,
  region: { type: String, required: true },
  email: { type: String, unique: true, lowercase: true, trim: true, match: /@/ },
  age: { type: Number, min: 0, validate: { validator: Number.isInteger, message: 'whole years' } },
  friends: [{ type: Number, ref: 'Person' }],
}, options);
personSchema.pre('save', function () {
  this.age ??= 18;
});

const memberSchema = new Schema({
  _id: Number,
  region: String,
  company_id: Number,
  email: String,
  person: { type: Number, ref: 'Person' },
}, options);

const walletSchema = new Schema({
  _id: Number,
  region: String,
  accounts: [{ _id: false, bank: String, number: String, balance: { type: Number, default: 0 } }],
}, options);

function models(connection) {
  const Person = connection.model('Person', personSchema, 'people');
  const Member = connection.model('Member', memberSchema, 'members');
  const Wallet = connection.model('Wallet', walletSchema, 'wallets');
  return { Person, Member, Wallet };
}

const person = (_id, region = 'a', fields = {}) => ({ _id, region, email: `${_id}@x`, ...fields });

async function show(Model) {
  for (const document of await Model.find().sort('_id').lean()) console.log(' ', plain(document));
}

async function saving({ Person, Wallet }) {
  await attempt('create', () => Person.create(person(1, 'a', { email: ' One@X ' })));
  await attempt('a duplicate', () => Person.create(person(2, 'z', { email: 'ONE@x' })));
  await attempt('invalid', () => Person.create({ _id: 3, region: 'a', email: 'none', age: 1.5 }));
  await attempt('create two', () => Person.create([person(2, 'z'), person(3)]));
  const two = await Person.findOne({ _id: 2 });
  two.email = 'one@x';
  two.age = 40;
  await attempt('save a duplicate', () => two.save());
  two.email = 'two@x';
  await attempt('save', () => two.save());
  await attempt('the freed key', () => Person.create(person(4, 'a', { email: '2@x' })));
  two.friends.push(1, 4);
  await attempt('save an array', () => two.save());
  await attempt('populate', () => Person.findById(2).populate('friends'));
  const four = await Person.findById(4);
  four.set({ email: undefined });
  await attempt('without the field', () => four.save());
  await attempt('remove', () => four.deleteOne());
  await show(Person);
  const wallet = await Wallet.create({ _id: 1, region: 'a', accounts: [{ bank: 'abc', number: '1' }, { bank: 'def', number: '2' }] });
  await attempt('another wallet', () => Wallet.create({ _id: 2, region: 'z', accounts: [{ bank: 'abc', number: '1' }] }));
  const stale = await Wallet.findById(1);
  wallet.accounts[0].number = '11';
  wallet.accounts[1].balance = 7;
  await attempt('an element', () => wallet.save());
  wallet.accounts = [{ bank: 'ghi', number: '3' }];
  await attempt('all elements', () => wallet.save());
  stale.accounts[0].number = '4';
  await attempt('of an old version', () => stale.save());
  await attempt('the freed accounts', () => Wallet.create({ _id: 2, region: 'z', accounts: [{ bank: 'abc', number: '1' }, { bank: 'def', number: '2' }] }));
  await show(Wallet);
}

async function querying({ Person, Member }) {
  await attempt('insertMany', () => Person.insertMany([person(1), person(2, 'z'), person(3, 'z')]));
  await attempt('with a duplicate', () => Person.insertMany([person(4), person(5, 'z', { email: '1@x' }), person(6)]));
  await attempt('unordered', () => Person.insertMany([person(5, 'z', { email: '1@x' }), person(6)], { ordered: false }));
  await attempt('updateOne', () => Person.updateOne({ _id: 1, region: 'a' }, { email: 'ONE@x' }));
  await attempt('a duplicate', () => Person.updateOne({ _id: 1, region: 'a' }, { email: '2@x' }));
  await attempt('invalid', () => Person.updateOne({ _id: 1, region: 'a' }, { age: -1 }, { runValidators: true }));
  await attempt('updateMany', () => Person.updateMany({ region: 'z' }, [{ $set: { email: { $concat: ['z', '$email'] } } }], { updatePipeline: true }));
  const one = { _id: 1, region: 'a' };
  await attempt('findOneAndUpdate', () => Person.findOneAndUpdate(one, { email: 'f@x' }, { new: true }));
  await attempt('a duplicate', () => Person.findOneAndUpdate(one, { email: 'z2@x' }, { new: true }));
  await attempt('upsert', () => Person.findOneAndUpdate({ _id: 7, region: 'z' }, { email: '7@x' }, { new: true, upsert: true, setDefaultsOnInsert: true }));
  await attempt('findOneAndReplace', () => Person.findOneAndReplace(one, person(1), { new: true }));
  await attempt('findOneAndDelete', () => Person.findOneAndDelete({ _id: 7, region: 'z' }));
  const requests = [
    { insertOne: { document: person(7, 'z') } },
    { insertOne: { document: person(8, 'z', { email: '7@x' }) } },
    { updateOne: { filter: one, update: { email: '7@x' } } },
    { updateOne: { filter: one, update: { email: 'b@x' } } },
    { replaceOne: { filter: { _id: 9, region: 'a' }, replacement: person(9, 'a', { email: '1@x' }), upsert: true } },
    { deleteOne: { filter: { _id: 7, region: 'z' } } },
  ];
  await attempt('bulkWrite', () => Person.bulkWrite(requests, { ordered: false }));
  await attempt('ordered', () => Person.bulkWrite(requests));
  await attempt('bulkSave', async () => {
    const people = await Person.find({ region: 'z' }).sort('_id');
    people.forEach((each) => (each.email = `s${each._id}@x`));
    const { modifiedCount } = await Person.bulkSave(people);
    return modifiedCount;
  });
  await show(Person);
  await Member.create({ _id: 1, region: 'z', company_id: 1, email: 'm@x', person: 1 });
  await attempt('of the same company', () => Member.create({ _id: 2, region: 'a', company_id: 1, email: 'm@x', person: 2 }));
  await attempt('of another', () => Member.create({ _id: 2, region: 'a', company_id: 2, email: 'm@x', person: 2 }));
  await attempt('populate', () => Member.find().sort('_id').populate({ path: 'person', populate: 'friends' }).lean());
  await attempt('deleteMany', () => Person.deleteMany({ region: 'z' }));
  await attempt('their keys are free', () => Person.insertMany([person(2, 'a', { email: 's2@x' }), person(3, 'a', { email: 's3@x' })]));
}

async function transactions({ Person }, connection) {
  await Person.create([person(1), person(2, 'z')]);
  await attempt('transaction', () => connection.transaction(async (session) => {
    await Person.deleteOne({ _id: 2, region: 'z' }, { session });
    await Person.create([person(3, 'a', { email: '2@x' })], { session });
    const one = await Person.findById(1).session(session);
    one.email = 'one@x';
    await one.save();
    await Person.create([person(4, 'z', { email: '1@x' })], { session });
  }).then(() => 'committed'));
  const one = await Person.findById(1);
  await attempt('with a duplicate', () => connection.transaction(async (session) => {
    await Person.create([person(5)], { session });
    one.email = '2@x';
    await one.save({ session });
  }));
  await attempt('saved afterwards', () => {
    one.email = '5@x';
    return one.save();
  });
  await show(Person);
}

// The driver beneath sends again what is cut off.
async function retries() {
  const connection = await mongoose.createConnection(relay, { dbName: database }).asPromise();
  const { Person } = models(connection);
  await attempt('updateOne', () => Person.updateOne({ _id: 1, region: 'a' }, { email: 'again@x' }, { comment: 'lose the reply 1' }));
  await attempt('findOneAndUpdate', () => Person.findOneAndUpdate({ _id: 1, region: 'a' }, { email: '1@x', $inc: { age: 1 } }, { new: true, comment: 'lose the reply 2' }));
  await attempt('deleteOne', () => Person.deleteOne({ _id: 1, region: 'a' }, { comment: 'hang up 1' }));
  await connection.close();
}

const connection = mongoose.createConnection(uri, { dbName: database });
await connection.asPromise();
console.log(connection.getClient().topology.description.type);
const all = models(connection);
for (const step of [saving, querying, transactions, retries]) {
  console.log('=', step.name);
  for (const Model of step === retries ? [] : Object.values(all)) await Model.deleteMany();
  await step(all, connection);
}
await all.Member.create({ _id: 1, region: 'z', company_id: 1 });
await all.Wallet.create({ _id: 1, region: 'a', accounts: [{ bank: '1', number: '2' }] });
await connection.close();
// Timers of a driver that has been closed would keep the process for 30 s.
process.exit();
