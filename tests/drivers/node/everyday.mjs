// Writes to a protected collection; prints what the driver says. Every driver's script does the same.
import { MongoClient } from "mongodb";

const client = await new MongoClient(process.argv[2]).connect();
const users = client.db(process.argv[3]).collection("users");

async function refused(write) {
  try {
    await write();
    console.log("not refused");
  } catch (error) {
    const errors = error.writeErrors;
    if (errors) {
      const positions = [errors].flat().map((one) => one.index).join(",");
      console.log("refused", error.code, "at", positions, "inserted", error.insertedCount);
    } else {
      console.log("refused", error.code, error.message.includes("email_1 dup key") ? "True" : "False");
    }
  }
}

await users.insertOne({ _id: 1, email: "a@x" });
await refused(() => users.insertOne({ _id: 2, email: "a@x" }));
const many = [{ _id: 3, email: "b@x" }, { _id: 4, email: "a@x" }, { _id: 5, email: "c@x" }];
await refused(() => users.insertMany(many, { ordered: false }));
await refused(() => users.updateOne({ _id: 3 }, { $set: { email: "c@x" } }));
console.log("updated", (await users.updateOne({ _id: 3 }, { $set: { email: "d@x" } })).modifiedCount);
console.log("before", (await users.findOneAndUpdate({ _id: 3 }, { $set: { email: "e@x" } })).email);
await users.replaceOne({ _id: 6 }, { email: "f@x" }, { upsert: true });
console.log("deleted", (await users.deleteOne({ email: "a@x" })).deletedCount);
await users.insertOne({ _id: 7, email: "a@x" });
console.log((await users.find().sort({ _id: 1 }).toArray()).map((user) => user.email).join(" "));
await client.close();
