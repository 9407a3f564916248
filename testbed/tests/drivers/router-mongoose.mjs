// What an application does with mongoose: prints OK if all of it worked.
import assert from "node:assert/strict";
import mongoose from "mongoose";

const base = process.argv[2];
await mongoose.connect(`${base}mongoose`);
await mongoose.connection.dropDatabase();
const schema = new mongoose.Schema({ email: { type: String, unique: true }, name: String, tags: [String] }, { timestamps: true });
const User = mongoose.model("User", schema);
await User.init();

const ada = await User.create({ email: "ada@x", name: "Ada", tags: ["first"] });
await assert.rejects(User.create({ email: "ada@x" }), { code: 11000 });
ada.name = "Ada L.";
await ada.save();
assert.equal((await User.findById(ada._id)).name, "Ada L.");
const tagged = await User.findOneAndUpdate({ email: "ada@x" }, { $push: { tags: "second" } }, { new: true });
assert.deepEqual([...tagged.tags], ["first", "second"]);
await User.insertMany([...Array(300).keys()].map((n) => ({ email: `${n}@x`, name: `name${n % 7}` })));
let read = 0;
for await (const user of User.find().sort({ name: 1 }).cursor({ batchSize: 50 })) read += user ? 1 : 0;
assert.equal(read, 301);
const session = await mongoose.startSession();
await session.withTransaction(async () => {
  await User.create([{ email: "in@transaction" }], { session });
  await User.updateOne({ email: "ada@x" }, { name: "Countess" }, { session });
});
await session.endSession();
assert.equal(await User.countDocuments(), 302);
const bulk = await User.bulkWrite([
  { insertOne: { document: { email: "bulk@x" } } },
  { updateOne: { filter: { email: "bulk@x" }, update: { name: "bulk" } } },
  { deleteOne: { filter: { email: "1@x" } } },
]);
assert.deepEqual([bulk.insertedCount, bulk.modifiedCount, bulk.deletedCount], [1, 1, 1]);
const groups = await User.aggregate([{ $group: { _id: "$name", n: { $sum: 1 } } }]);
assert.equal(groups.length, 10);
await mongoose.connection.dropDatabase();
await mongoose.disconnect();
console.log("OK");
